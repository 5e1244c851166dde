//! Named sets of goals, from benchmarks and guides (`slo.md` §9). There is no consensus: take one as a start, then one's own numbers.

/// A preset.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// Its name.
    pub name: &'static str,
    /// What it is for, and where the numbers are from.
    pub doc: &'static str,
    /// Its goals, in the short form.
    pub goals: &'static [&'static str],
}

const MLPERF: &str = "MLPerf Inference, server scenario (mlcommons/inference_policies@ac93e89c)";
const MLPERF_INTERACTIVE: &str = "MLPerf Inference, interactive scenario (mlcommons/inference_policies@ac93e89c)";
const DISTSERVE: &str = "DistServe: 90 % of requests keep both (LLMServe/DistServe@82831f16)";
const GUIDELLM: &str = "GuideLLM's example objectives, p99";
const PLANNER: &str = "llm-d-planner, docs/traffic_and_slos.md, p95 (llm-d-incubation/llm-d-planner@e50305af)";
const CLASS: &str = "llm-d-planner's class of experience by TTFT, p95 (llm-d-incubation/llm-d-planner@e50305af)";

const fn preset(name: &'static str, doc: &'static str, goals: &'static [&'static str]) -> Preset {
    Preset { name, doc, goals }
}

/// Every preset.
pub const PRESETS: [Preset; 32] = [
    preset(
        "chat",
        "a chat with people: our own starting point",
        &["availability >= 99.9%", "ttft p95 <= 800ms", "goodput{ttft<=2s, tpot<=100ms, max_stall<=3s} >= 99%"],
    ),
    preset(
        "rag",
        "answers over retrieved documents, long prompts: our own starting point",
        &["availability >= 99.9%", "ttft p95 <= 300ms + 0.5ms/token", "duration p95 <= 30s"],
    ),
    preset(
        "agent",
        "programs that call models: nobody reads along, duration counts: our own starting point",
        &["availability >= 99.9%", "duration p95 <= 60s", "goodput{duration<=120s, max_stall<=10s} >= 99%"],
    ),
    preset("mlperf/llama3.1-8b", MLPERF, &["ttft p99 <= 2s", "tpot p99 <= 100ms"]),
    preset("mlperf/llama3.1-8b-interactive", MLPERF_INTERACTIVE, &["ttft p99 <= 500ms", "tpot p99 <= 30ms"]),
    preset("mlperf/llama2-70b", MLPERF, &["ttft p99 <= 2s", "tpot p99 <= 200ms"]),
    preset("mlperf/llama2-70b-interactive", MLPERF_INTERACTIVE, &["ttft p99 <= 450ms", "tpot p99 <= 40ms"]),
    preset("mlperf/llama3.1-405b", MLPERF, &["ttft p99 <= 6s", "tpot p99 <= 175ms"]),
    preset("mlperf/llama3.1-405b-interactive", MLPERF_INTERACTIVE, &["ttft p99 <= 4500ms", "tpot p99 <= 80ms"]),
    preset("mlperf/mixtral-8x7b", MLPERF, &["ttft p99 <= 2s", "tpot p99 <= 200ms"]),
    preset("mlperf/deepseek-r1", MLPERF, &["ttft p99 <= 2s", "tpot p99 <= 80ms"]),
    preset("mlperf/deepseek-r1-interactive", MLPERF_INTERACTIVE, &["ttft p99 <= 1500ms", "tpot p99 <= 15ms"]),
    preset("mlperf/gpt-oss-120b", MLPERF, &["ttft p99 <= 3s", "tpot p99 <= 80ms"]),
    preset(
        "mlperf/gpt-oss-120b-interactive",
        "MLPerf Inference, interactive: 20 ms in the rules, 15 ms in mlcommons/inference@b66003e1:loadgen/mlperf.conf; this is the rules'",
        &["ttft p99 <= 2s", "tpot p99 <= 20ms"],
    ),
    preset("distserve/opt-13b", DISTSERVE, &["goodput{ttft<=250ms, tpot<=100ms} >= 90%"]),
    preset("distserve/opt-66b", DISTSERVE, &["goodput{ttft<=400ms, tpot<=100ms} >= 90%"]),
    preset("distserve/opt-175b", DISTSERVE, &["goodput{ttft<=4s, tpot<=200ms} >= 90%"]),
    preset("guidellm/chat", GUIDELLM, &["ttft p99 <= 200ms", "tpot p99 <= 50ms"]),
    preset("guidellm/rag", GUIDELLM, &["ttft p99 <= 300ms", "tpot p99 <= 100ms", "duration p99 <= 3s"]),
    preset("guidellm/agent", GUIDELLM, &["duration p99 <= 5s"]),
    preset("guidellm/content", GUIDELLM, &["ttft p99 <= 600ms", "tpot p99 <= 200ms"]),
    preset("guidellm/code-generation", GUIDELLM, &["ttft p99 <= 500ms", "tpot p99 <= 150ms"]),
    preset("guidellm/code-completion", GUIDELLM, &["duration p99 <= 2s"]),
    preset("llm-d/chat", PLANNER, &["ttft p95 <= 150ms", "tpot p95 <= 25ms", "duration p95 <= 7s"]),
    preset("llm-d/code-completion", PLANNER, &["ttft p95 <= 100ms", "tpot p95 <= 20ms", "duration p95 <= 5s"]),
    preset(
        "llm-d/long-prompt",
        "llm-d-planner, 4096 tokens in and 512 out: the laxer end of its ranges, p95",
        &["ttft p95 <= 600ms", "tpot p95 <= 30ms", "duration p95 <= 20s"],
    ),
    preset(
        "llm-d/longest-prompt",
        "llm-d-planner, 10240 tokens in and 1536 out: the laxer end of its ranges, p95",
        &["ttft p95 <= 2s", "tpot p95 <= 45ms", "duration p95 <= 90s"],
    ),
    preset("llm-d/instant", CLASS, &["ttft p95 <= 150ms"]),
    preset("llm-d/conversational", CLASS, &["ttft p95 <= 300ms"]),
    preset("llm-d/interactive", CLASS, &["ttft p95 <= 500ms"]),
    preset("llm-d/deferred", CLASS, &["ttft p95 <= 1s"]),
    preset("llm-d/batch", CLASS, &["ttft p95 <= 2s"]),
];

/// The preset of a name.
pub fn find(name: &str) -> Option<&'static Preset> {
    PRESETS.iter().find(|p| p.name == name)
}
