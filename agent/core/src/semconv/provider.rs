//! Who serves, by the host that a request names.

/// Host suffix → provider. Only the two Google hosts stand in the conventions; the rest is our mapping of their list of values.
const PROVIDERS: &[(&str, &str)] = &[
    ("api.openai.com", "openai"),
    (".openai.azure.com", "azure.ai.openai"),
    (".cognitiveservices.azure.com", "azure.ai.openai"),
    (".services.ai.azure.com", "azure.ai.inference"),
    (".models.ai.azure.com", "azure.ai.inference"),
    ("api.anthropic.com", "anthropic"),
    ("generativelanguage.googleapis.com", "gcp.gemini"),
    ("aiplatform.googleapis.com", "gcp.vertex_ai"),
    ("api.mistral.ai", "mistral_ai"),
    ("api.cohere.com", "cohere"),
    ("api.cohere.ai", "cohere"),
    ("api.deepseek.com", "deepseek"),
    ("api.groq.com", "groq"),
    ("api.x.ai", "x_ai"),
    ("api.perplexity.ai", "perplexity"),
    ("api.moonshot.cn", "moonshot_ai"),
    ("api.moonshot.ai", "moonshot_ai"),
    ("openrouter.ai", "openrouter"),
    ("api.together.xyz", "together_ai"),
    ("api.together.ai", "together_ai"),
    ("router.huggingface.co", "hugging_face"),
    ("api-inference.huggingface.co", "hugging_face"),
    (".endpoints.huggingface.cloud", "hugging_face"),
    ("api.fireworks.ai", "fireworks_ai"),
    ("api.cerebras.ai", "cerebras"),
    ("dashscope.aliyuncs.com", "alibaba"),
    ("dashscope-intl.aliyuncs.com", "alibaba"),
    ("dashscope-us.aliyuncs.com", "alibaba"),
    ("api.z.ai", "z_ai"),
    ("open.bigmodel.cn", "z_ai"),
    ("api.jina.ai", "jina_ai"),
    ("api.voyageai.com", "voyage_ai"),
    ("ollama.com", "ollama"),
    ("integrate.api.nvidia.com", "nvidia"),
    ("api.novita.ai", "novita_ai"),
];

/// The provider that serves at `host` (without port), as far as the host says.
pub fn provider_of_host(host: &str) -> Option<&'static str> {
    if host.starts_with("bedrock-runtime") && host.ends_with(".amazonaws.com") {
        return Some("aws.bedrock");
    }
    let named = |suffix: &str| {
        host.strip_suffix(suffix)
            .is_some_and(|rest| rest.is_empty() || suffix.starts_with('.') || rest.ends_with('.') || rest.ends_with('-'))
    };
    PROVIDERS.iter().find(|(suffix, _)| named(suffix)).map(|(_, provider)| *provider)
}

/// The provider that a `server` response header names, for servers that people run themselves.
pub fn provider_of_server_header(server: &str) -> Option<&'static str> {
    let server = server.trim();
    if server.starts_with("llama.cpp") {
        return Some("llama_cpp");
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts() {
        for (host, want) in [
            ("api.openai.com", Some("openai")),
            ("eu.api.openai.com", Some("openai")),
            ("notapi.openai.com.evil.test", None),
            ("evilapi.openai.com", None),
            ("my-res.openai.azure.com", Some("azure.ai.openai")),
            ("us-central1-aiplatform.googleapis.com", Some("gcp.vertex_ai")),
            ("bedrock-runtime.us-east-1.amazonaws.com", Some("aws.bedrock")),
            ("10.0.0.1", None),
            ("vllm.default.svc", None),
        ] {
            assert_eq!(provider_of_host(host), want, "{host}");
        }
    }
}
