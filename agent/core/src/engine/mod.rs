//! What inference servers say of themselves: their Prometheus texts, read and brought under one set of names.
//!
//! ```text
//! bytes ─► text::Reader ─ Sample ─► Gather (figures: who calls what how) ─► Reading ─► Book (since it was first read) ─► exporters
//!                                                                            └► Beside (the same, on the wire)
//! ```
//!
//! Pure, as everything here: who connects to a server and when is the agent's matter.

pub mod beside;
pub mod book;
pub mod figures;
pub mod gather;
pub mod text;

/// A kind of inference server.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
    /// TensorRT-LLM's own server, `trtllm-serve`.
    TensorRtLlm,
    /// Hugging Face's text-generation-inference.
    Tgi,
    /// llama.cpp's `llama-server`.
    LlamaCpp,
    /// NVIDIA's Triton.
    Triton,
    /// Ollama. It has no metrics: durations stand in the last line of each answer only (servers.md §1.2).
    Ollama,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 7] = [Self::Vllm, Self::Sglang, Self::TensorRtLlm, Self::Tgi, Self::LlamaCpp, Self::Triton, Self::Ollama];

    /// As it stands in `tokengauge.engine` and in the configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
            Self::TensorRtLlm => "tensorrt-llm",
            Self::Tgi => "tgi",
            Self::LlamaCpp => "llama.cpp",
            Self::Triton => "triton",
            Self::Ollama => "ollama",
        }
    }

    /// The kind of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|k| k.as_str() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_names_of_their_own() {
        for kind in Kind::ALL {
            assert_eq!(Kind::named(kind.as_str()), Some(kind));
        }
        assert_eq!(Kind::named("gpt"), None);
    }
}
