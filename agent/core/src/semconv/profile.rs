//! Which generation of the conventions is spoken. The names moved twice in 2026, and dashboards in the field read v1.41.

use super::attr;

/// A generation of the GenAI conventions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Profile {
    /// The last released names, v1.41.1, and beside them the counters of tokens that came after them.
    #[default]
    V1_41,
    /// The names of `semantic-conventions-genai` as of October 2026.
    Main,
    /// Both at once, for the time in which dashboards move from one to the other.
    Both,
}

/// Under which profiles a metric is exported.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum In {
    /// Every one.
    Always,
    /// Those that speak v1.41.
    Old,
    /// Those that speak `main`.
    New,
}

impl Profile {
    /// Every profile.
    pub const ALL: [Self; 3] = [Self::V1_41, Self::Main, Self::Both];

    /// As it stands in a configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V1_41 => "v1_41",
            Self::Main => "main",
            Self::Both => "both",
        }
    }

    /// What `OTEL_SEMCONV_STABILITY_OPT_IN` asks for, a list with commas: `gen_ai_latest_experimental` is [`Profile::Main`], and with
    /// `/dup` behind it (as the conventions of HTTP and databases spell it) [`Profile::Both`]. `None` when it says nothing of GenAI.
    pub fn opted_in(list: &str) -> Option<Self> {
        let mut found = None;
        for word in list.split(',').map(str::trim) {
            found = match word {
                "gen_ai_latest_experimental/dup" | "gen_ai/dup" => Some(Self::Both),
                "gen_ai_latest_experimental" => found.or(Some(Self::Main)),
                _ => found,
            };
        }
        found
    }

    /// Whether the names of v1.41 are spoken.
    pub const fn speaks_v1_41(self) -> bool {
        matches!(self, Self::V1_41 | Self::Both)
    }

    /// Whether those of `main` are.
    pub const fn speaks_main(self) -> bool {
        matches!(self, Self::Main | Self::Both)
    }

    /// Whether a metric of that kind is exported.
    pub const fn has(self, under: In) -> bool {
        match under {
            In::Always => true,
            In::Old => self.speaks_v1_41(),
            In::New => self.speaks_main(),
        }
    }

    /// The schema that the names belong to; of both, the released one.
    pub const fn schema_url(self) -> &'static str {
        match self {
            Self::V1_41 | Self::Both => "https://opentelemetry.io/schemas/1.41.0",
            Self::Main => "https://opentelemetry.io/schemas/gen-ai-dev/1.42.0-dev",
        }
    }

    /// The names of the attribute of tokens that were written to a cache, which was renamed.
    pub const fn cache_write(self) -> &'static [&'static str] {
        match self {
            Self::V1_41 => &[attr::USAGE_CACHE_CREATION],
            Self::Main => &[attr::USAGE_CACHE_WRITE],
            Self::Both => &[attr::USAGE_CACHE_CREATION, attr::USAGE_CACHE_WRITE],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opting_in() {
        for (list, want) in [
            ("", None),
            ("http,database/dup", None),
            ("gen_ai_latest_experimental", Some(Profile::Main)),
            ("http, gen_ai_latest_experimental", Some(Profile::Main)),
            ("gen_ai_latest_experimental/dup", Some(Profile::Both)),
            ("gen_ai/dup,gen_ai_latest_experimental", Some(Profile::Both)),
        ] {
            assert_eq!(Profile::opted_in(list), want, "{list}");
        }
    }
}
