//! How an answer is to be sampled, under the names that each API has for it.

use serde::Deserialize;

use super::body::{Asked, Count, Number};

/// Sampling as an object says it, under any of its names.
#[derive(Clone, PartialEq, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Sampling {
    /// Upper bound of output tokens.
    #[serde(alias = "max_output_tokens", alias = "maxTokens", alias = "maxTokenCount", alias = "max_new_tokens", alias = "num_predict")]
    pub max_output_tokens: Count,
    /// Sampling temperature.
    pub temperature: Number,
    /// Nucleus sampling bound.
    #[serde(alias = "top_p")]
    pub top_p: Number,
    /// Number of choices.
    #[serde(alias = "candidate_count")]
    pub candidate_count: Count,
}

impl Asked {
    fn sampling(&self) -> Option<&Sampling> {
        [&self.generation_config, &self.options, &self.parameters, &self.sampling_params].into_iter().find_map(|o| o.0.as_deref())
    }

    /// Upper bound of output tokens, under whichever name.
    pub fn bound(&self) -> Option<u64> {
        let names = [
            self.max_completion_tokens,
            self.max_tokens,
            self.max_output_tokens,
            self.max_tokens_to_sample,
            self.max_gen_len,
            self.n_predict,
        ];
        names.iter().find_map(|n| n.0).or_else(|| self.sampling()?.max_output_tokens.0)
    }

    /// Sampling temperature.
    pub fn heat(&self) -> Option<f64> {
        self.temperature.0.or_else(|| self.sampling()?.temperature.0)
    }

    /// Nucleus sampling bound.
    pub fn nucleus(&self) -> Option<f64> {
        self.top_p.0.or_else(|| self.sampling()?.top_p.0)
    }

    /// Number of choices, when it is not 1.
    pub fn choices(&self) -> Option<u32> {
        let n = self.n.0.or_else(|| self.sampling()?.candidate_count.0);
        n.and_then(|n| u32::try_from(n).ok()).filter(|n| *n != 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_api_has_names_of_its_own() {
        let sampling = |text: &str| {
            let a: Asked = serde_json::from_str(text).unwrap();
            (a.bound(), a.heat(), a.nucleus(), a.choices())
        };
        let gemini = r#"{"generationConfig":{"maxOutputTokens":9,"temperature":0.5,"topP":0.25,"candidateCount":2,"thinkingConfig":{}}}"#;
        assert_eq!(sampling(gemini), (Some(9), Some(0.5), Some(0.25), Some(2)));
        assert_eq!(sampling(r#"{"inferenceConfig":{"max_new_tokens":9,"top_p":1}}"#), (Some(9), None, Some(1.0), None));
        assert_eq!(sampling(r#"{"options":{"num_predict":9,"temperature":0.5}}"#), (Some(9), Some(0.5), None, None));
        assert_eq!(sampling(r#"{"inputs":"x","parameters":{"max_new_tokens":9}}"#), (Some(9), None, None, None));
        assert_eq!(sampling(r#"{"sampling_params":[{}],"n_predict":4}"#), (Some(4), None, None, None));
        assert_eq!(sampling(r#"{"textGenerationConfig":[7],"max_gen_len":3,"n":1}"#), (Some(3), None, None, None));
    }
}
