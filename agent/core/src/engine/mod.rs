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
    use super::gather::{Gather, Reading, shown};
    use super::text::{Counts, Reader};
    use super::*;
    use expect_test::expect_file;

    fn read(text: &str, piece: usize) -> (Reading, Counts) {
        let (mut reader, mut gather) = (Reader::default(), Gather::default());
        for part in text.as_bytes().chunks(piece) {
            reader.push(part, &mut |s| gather.sample(s));
        }
        let counts = reader.finish(&mut |s| gather.sample(s));
        (gather.finish(), counts)
    }

    /// That of llama.cpp is what a real server wrote; the others were written after `figures`' sources, with the bounds and labels that
    /// those have.
    #[test]
    fn texts_of_each_server() {
        for (kind, text) in [
            (Kind::Vllm, include_str!("texts/vllm.prom")),
            (Kind::Sglang, include_str!("texts/sglang.prom")),
            (Kind::TensorRtLlm, include_str!("texts/tensorrt-llm.prom")),
            (Kind::Tgi, include_str!("texts/tgi.prom")),
            (Kind::LlamaCpp, include_str!("texts/llama.cpp.prom")),
            (Kind::Triton, include_str!("texts/triton.prom")),
        ] {
            let (reading, counts) = read(text, text.len());
            assert_eq!((counts.bad, counts.first_bad), (0, None), "{kind:?}");
            assert_eq!((reading.bad, reading.left_out), (0, 0), "{kind:?}");
            let name = format!("{}/src/engine/texts/{}.figures", env!("CARGO_MANIFEST_DIR"), kind.as_str());
            expect_file![name].assert_eq(&shown(&reading));
            // Every figure of the registry is in its text, but for names that newer servers have no longer.
            let known = figures::server(kind).unwrap().figures.iter().map(|f| f.is);
            let missing: Vec<_> = known.filter(|is| !reading.series.keys().any(|k| k.is == *is)).collect();
            let gone = if kind == Kind::LlamaCpp { vec![figures::Quantity::KvCacheUsage] } else { Vec::new() };
            assert_eq!(missing, gone, "{kind:?}");
            for piece in [1, 2, 7, 63] {
                assert_eq!(read(text, piece), (reading.clone(), counts), "{kind:?} in pieces of {piece}");
            }
        }
    }

    #[test]
    fn kinds_have_names_of_their_own() {
        for kind in Kind::ALL {
            assert_eq!(Kind::named(kind.as_str()), Some(kind));
        }
        assert_eq!(Kind::named("gpt"), None);
    }
}
