//! What the bodies of all dialects have in common: the request, error objects, lists and texts. Scalars: [`super::values`].

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{self, Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::name::Name;

use super::asked::Sampling;
pub use super::values::{Class, Count, Flag, IsList, IsThere, Length, Number, Object, Prompt, Prose, Short, Word};

/// What a request asks for, read from its reduced body. Prompts are seen as present or absent only.
#[derive(Clone, PartialEq, Debug, Default, serde::Deserialize)]
#[serde(default)]
pub struct Asked {
    /// The model asked for.
    pub model: Short,
    /// Whether a stream is asked for.
    pub stream: Flag,
    /// The prompt is to be sent back before the answer (vLLM; legacy completions).
    pub echo: Flag,
    /// `messages` is a list.
    pub messages: IsList,
    /// `prompt` is there, and whether it is an object: a stored prompt (Responses).
    pub prompt: Prompt,
    /// `input` is there.
    pub input: IsThere,
    /// `inputs` is there (TGI).
    pub inputs: IsThere,
    /// `contents` is a list (Gemini).
    pub contents: IsList,
    /// `message` is there (Cohere v1).
    pub message: IsThere,
    /// `text` is there (SGLang).
    pub text: IsThere,
    /// `text_input` is there (Triton).
    pub text_input: IsThere,
    /// `query` is a text (rerank), and none of a query language.
    pub query: Prose,
    /// `question` is there.
    pub question: IsThere,
    /// `documents` is there (rerank).
    pub documents: IsThere,
    /// `texts` is there (Cohere's embeddings, TEI's rerank).
    pub texts: IsThere,
    /// `images` is there (Cohere's embeddings).
    pub images: IsThere,
    /// `input_ids` is there: a prompt of tokens (SGLang).
    pub input_ids: IsThere,
    /// `input_prefix` is there (llama.cpp's infill).
    pub input_prefix: IsThere,
    /// Upper bound of output tokens.
    pub max_tokens: Count,
    /// Upper bound of output tokens, newer name.
    pub max_completion_tokens: Count,
    /// Sampling temperature.
    pub temperature: Number,
    /// Nucleus sampling bound.
    pub top_p: Number,
    /// Number of choices.
    pub n: Count,
    /// `anthropic_version` stands in the body: Bedrock or Vertex.
    pub anthropic_version: IsThere,
    /// Upper bound of output tokens (Responses).
    pub max_output_tokens: Count,
    /// Upper bound of output tokens (Claude 2 on Bedrock).
    pub max_tokens_to_sample: Count,
    /// Upper bound of output tokens (Llama on Bedrock).
    pub max_gen_len: Count,
    /// Sampling in an object of its own (Gemini, Bedrock Converse and Nova, Titan).
    #[serde(alias = "generationConfig", alias = "inferenceConfig", alias = "textGenerationConfig")]
    pub generation_config: Object<Box<Sampling>>,
    /// Upper bound of output tokens (llama.cpp).
    pub n_predict: Count,
    /// Sampling in an object of its own (Ollama).
    pub options: Object<Box<Sampling>>,
    /// Sampling in an object of its own (TGI, Triton).
    pub parameters: Object<Box<Sampling>>,
    /// Sampling in an object of its own (SGLang).
    pub sampling_params: Object<Box<Sampling>>,
}

/// An error in any of the forms of `wire.md` §9, inside a stream or as a body of its own.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ErrorField {
    /// Whether there is one: anything but null, false, 0, "" and {}.
    pub is: bool,
    /// Its type, else its code, else its status; a status in words (Google's) before a code in digits.
    pub kind: Option<Name>,
}

impl<'de> Deserialize<'de> for ErrorField {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = ErrorField;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an error")
            }
            fn visit_unit<E>(self) -> Result<ErrorField, E> {
                Ok(ErrorField::default())
            }
            fn visit_bool<E>(self, v: bool) -> Result<ErrorField, E> {
                Ok(ErrorField { is: v, kind: None })
            }
            fn visit_u64<E>(self, v: u64) -> Result<ErrorField, E> {
                Ok(ErrorField { is: v != 0, kind: None })
            }
            fn visit_i64<E>(self, v: i64) -> Result<ErrorField, E> {
                Ok(ErrorField { is: v != 0, kind: None })
            }
            fn visit_f64<E>(self, v: f64) -> Result<ErrorField, E> {
                Ok(ErrorField { is: v != 0.0, kind: None })
            }
            fn visit_str<E>(self, v: &str) -> Result<ErrorField, E> {
                Ok(ErrorField { is: !v.is_empty(), kind: None })
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut a: A) -> Result<ErrorField, A::Error> {
                let mut is = false;
                while a.next_element::<IgnoredAny>()?.is_some() {
                    is = true;
                }
                Ok(ErrorField { is, kind: None })
            }
            fn visit_map<A: MapAccess<'de>>(self, mut a: A) -> Result<ErrorField, A::Error> {
                let (mut is, mut kind, mut code, mut status) = (false, Class::default(), Class::default(), Class::default());
                while let Some(key) = a.next_key::<Cow<'de, str>>()? {
                    is = true;
                    match key.as_ref() {
                        "type" => kind = a.next_value()?,
                        "code" => code = a.next_value()?,
                        "status" | "status_code" => status = a.next_value()?,
                        _ => drop(a.next_value::<IgnoredAny>()?),
                    }
                }
                let digits = |c: &Name| c.as_str().bytes().all(|b| b.is_ascii_digit());
                let worded = status.0.as_ref().is_some_and(|s| !digits(s)) && code.0.as_ref().is_some_and(digits);
                let named = if worded { status.0.or(code.0) } else { code.0.or(status.0) };
                Ok(ErrorField { is, kind: kind.0.or(named) })
            }
        }
        d.deserialize_any(V)
    }
}

/// Reads an object; an array or a scalar is none of ours (serde would read a struct from an array).
pub fn object<'a, T: Deserialize<'a>>(data: &'a [u8]) -> Option<T> {
    data.trim_ascii_start().starts_with(b"{").then(|| serde_json::from_slice(data).ok()).flatten()
}

/// Reads an object, or a list of them (a list of lists is none: serde would read structs from those, too).
pub fn objects<'a, T: Deserialize<'a>>(data: &'a [u8]) -> Option<Few<T>> {
    let mut begin = data.iter().filter(|b| !b.is_ascii_whitespace());
    let fits = match begin.next() {
        Some(b'{') => true,
        Some(b'[') => matches!(begin.next(), Some(b'{' | b']')),
        _ => false,
    };
    fits.then(|| serde_json::from_slice(data).ok()).flatten()
}

/// The type or code that an HTTP error's body names, whatever its API (`wire.md` §9).
pub fn http_error_kind(body: &[u8]) -> Option<Name> {
    #[derive(serde::Deserialize, Default)]
    #[serde(default)]
    struct Body {
        error: ErrorField,
        error_type: Class,
        code: Class,
        r#type: Class,
    }
    // Vertex may wrap its error in an array.
    let wrapped = body.trim_ascii_start().starts_with(b"[");
    let body: Body = match wrapped {
        false => serde_json::from_slice(body).ok()?,
        true => serde_json::from_slice::<Vec<Body>>(body).ok()?.into_iter().next()?,
    };
    let outer = body.r#type.0.filter(|t| t.as_str() != "error");
    body.error.kind.or(body.error_type.0).or(outer).or(body.code.0)
}

/// A list of which the first element needs no allocation: nearly every answer has one choice. An object stands for a list of one,
/// a scalar for none.
#[derive(Clone, Debug)]
pub struct Few<T> {
    first: Option<T>,
    rest: Vec<T>,
}

impl<T> Default for Few<T> {
    fn default() -> Self {
        Self { first: None, rest: Vec::new() }
    }
}

impl<T> Few<T> {
    /// The elements in order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.first.iter().chain(&self.rest)
    }

    /// The first element.
    pub fn first(&self) -> Option<&T> {
        self.first.as_ref()
    }

    /// How many.
    pub fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.rest.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.first.is_none()
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Few<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for V<T> {
            type Value = Few<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }
            fn visit_unit<E: de::Error>(self) -> Result<Few<T>, E> {
                Ok(Few::default())
            }
            fn visit_bool<E: de::Error>(self, _: bool) -> Result<Few<T>, E> {
                Ok(Few::default())
            }
            fn visit_u64<E: de::Error>(self, _: u64) -> Result<Few<T>, E> {
                Ok(Few::default())
            }
            fn visit_i64<E: de::Error>(self, _: i64) -> Result<Few<T>, E> {
                Ok(Few::default())
            }
            fn visit_f64<E: de::Error>(self, _: f64) -> Result<Few<T>, E> {
                Ok(Few::default())
            }
            fn visit_str<E: de::Error>(self, _: &str) -> Result<Few<T>, E> {
                Ok(Few::default())
            }
            fn visit_map<A: MapAccess<'de>>(self, a: A) -> Result<Few<T>, A::Error> {
                let one = T::deserialize(de::value::MapAccessDeserializer::new(a))?;
                Ok(Few { first: Some(one), rest: Vec::new() })
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut a: A) -> Result<Few<T>, A::Error> {
                let mut few = Few { first: a.next_element()?, rest: Vec::new() };
                while let Some(next) = a.next_element()? {
                    few.rest.push(next);
                }
                Ok(few)
            }
        }
        d.deserialize_any(V(PhantomData))
    }
}

/// A text of which only its being there matters. Borrowed where the JSON holds it without escapes, so that its place is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Text<'a> {
    /// Absent, null or empty.
    #[default]
    None,
    /// Not empty; the JSON's own bytes.
    Here(&'a str),
    /// Not empty, somewhere.
    Some,
    /// A list of parts (Mistral): whether there is text, whether there is thinking.
    Parts {
        /// A part with text.
        text: bool,
        /// A part with thinking.
        thinking: bool,
    },
}

impl Text<'_> {
    /// Whether there is visible text.
    pub fn is_text(&self) -> bool {
        matches!(self, Self::Here(_) | Self::Some | Self::Parts { text: true, .. })
    }

    /// Whether there is thinking.
    pub fn is_thinking(&self) -> bool {
        matches!(self, Self::Parts { thinking: true, .. })
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        #[derive(serde::Deserialize, Default)]
        #[serde(default)]
        struct Part<'p> {
            #[serde(borrow)]
            text: Text<'p>,
            #[serde(borrow)]
            refusal: Text<'p>,
            #[serde(borrow)]
            thinking: Text<'p>,
        }
        struct V<'a>(PhantomData<&'a ()>);
        impl<'de: 'a, 'a> Visitor<'de> for V<'a> {
            type Value = Text<'a>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }
            fn visit_unit<E>(self) -> Result<Text<'a>, E> {
                Ok(Text::None)
            }
            fn visit_bool<E>(self, _: bool) -> Result<Text<'a>, E> {
                Ok(Text::None)
            }
            fn visit_u64<E>(self, _: u64) -> Result<Text<'a>, E> {
                Ok(Text::None)
            }
            fn visit_i64<E>(self, _: i64) -> Result<Text<'a>, E> {
                Ok(Text::None)
            }
            fn visit_f64<E>(self, _: f64) -> Result<Text<'a>, E> {
                Ok(Text::None)
            }
            fn visit_borrowed_str<E>(self, v: &'de str) -> Result<Text<'a>, E> {
                Ok(if v.is_empty() { Text::None } else { Text::Here(v) })
            }
            fn visit_str<E>(self, v: &str) -> Result<Text<'a>, E> {
                Ok(if v.is_empty() { Text::None } else { Text::Some })
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut a: A) -> Result<Text<'a>, A::Error> {
                let (mut text, mut thinking) = (false, false);
                while let Some(part) = a.next_element::<Few<Part<'de>>>()? {
                    // A string in the list is no part of this API.
                    for part in part.iter() {
                        text |= part.text.is_text() || part.refusal.is_text();
                        thinking |= part.thinking.is_text();
                    }
                }
                Ok(Text::Parts { text, thinking })
            }
            fn visit_map<A: MapAccess<'de>>(self, mut a: A) -> Result<Text<'a>, A::Error> {
                let mut any = false;
                while a.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
                    any = true;
                }
                // Arguments as an object instead of a string of JSON: some servers do.
                Ok(if any { Text::Some } else { Text::None })
            }
        }
        d.deserialize_any(V(PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_any_shape_are_read() {
        let a: Asked =
            serde_json::from_str(r#"{"model":"m","stream":true,"messages":[{},{}],"n":2.0,"max_tokens":"many","temperature":1}"#).unwrap();
        assert_eq!(
            (a.model.0.unwrap().as_str(), a.stream.0, a.messages.0, a.n.0, a.max_tokens.0, a.temperature.0),
            ("m", Some(true), true, Some(2), None, Some(1.0))
        );
        let a: Asked = serde_json::from_str(r#"{"model":7,"stream":"yes","messages":{},"n":-1,"prompt":null}"#).unwrap();
        assert_eq!(a, Asked::default());
        let stored: Asked = serde_json::from_str(r#"{"prompt":{"id":"p"}}"#).unwrap();
        assert_eq!(stored.prompt, Prompt(true, true));
    }

    #[test]
    fn errors_in_every_form() {
        let kind = |body: &str| http_error_kind(body.as_bytes()).map(|n| n.to_string());
        assert_eq!(
            kind(r#"{"error":{"message":"no such model","type":"invalid_request_error","code":"model_not_found"}}"#).as_deref(),
            Some("invalid_request_error")
        );
        assert_eq!(kind(r#"{"type":"error","error":{"type":"overloaded_error","message":"x"}}"#).as_deref(), Some("overloaded_error"));
        assert_eq!(kind(r#"[{"error":{"code":404,"status":"NOT_FOUND"}}]"#).as_deref(), Some("NOT_FOUND"));
        assert_eq!(kind(r#"{"error":{"code":"content_filter","status":400}}"#).as_deref(), Some("content_filter"));
        assert_eq!(kind(r#"{"error":"model not found"}"#), None);
        assert_eq!(kind(r#"{"code":"invalid-argument","error":"text"}"#).as_deref(), Some("invalid-argument"));
        assert_eq!(kind(r#"{"error":{"type":"has a space"}}"#), None);
        assert_eq!(kind("not json"), None);
        // Azure AI Foundry, Groq, Cohere, Mistral (two of them), Ollama, TGI, OpenRouter, SGLang.
        assert_eq!(kind(r#"{"error":{"code":"DeploymentNotFound","message":"m","details":"d"}}"#).as_deref(), Some("DeploymentNotFound"));
        assert_eq!(
            kind(r#"{"error":{"message":"m","type":"tokens","code":"rate_limit_exceeded","failed_generation":"{"}}"#).as_deref(),
            Some("tokens")
        );
        assert_eq!(kind(r#"{"message":"invalid request","id":"x"}"#), None);
        assert_eq!(kind(r#"{"message":"m","error_type":"INVALID_ARGUMENT"}"#).as_deref(), Some("INVALID_ARGUMENT"));
        assert_eq!(kind(r#"{"detail":"Unauthorized"}"#), None);
        assert_eq!(
            kind(r#"{"object":"error","message":"m","type":"rate_limited","param":null,"code":"1300"}"#).as_deref(),
            Some("rate_limited")
        );
        assert_eq!(kind(r#"{"error":"model 'x' not found"}"#), None);
        assert_eq!(kind(r#"{"error":"m","error_type":"overloaded"}"#).as_deref(), Some("overloaded"));
        assert_eq!(
            kind(r#"{"error":{"code":402,"message":"m","metadata":{"provider_name":"p","raw":{}}},"user_id":"u"}"#).as_deref(),
            Some("402")
        );
        assert_eq!(kind(r#"{"object":"error","message":"m","type":"BadRequestError","code":400}"#).as_deref(), Some("BadRequestError"));
    }

    #[test]
    fn lists_of_one_lengths_and_prose() {
        let n = |json: &str| serde_json::from_str::<Few<Flag>>(json).unwrap().len();
        assert_eq!((n("[true,false]"), n("[]"), n("null"), n("7"), n("\"x\""), n("true")), (2, 0, 0, 0, 0, 0));
        let one: Few<ErrorField> = serde_json::from_str(r#"{"type":"t"}"#).unwrap();
        assert_eq!((one.len(), one.first().map(|e| e.is)), (1, Some(true)));
        let length = |json: &str| serde_json::from_str::<Length>(json).unwrap().0;
        assert_eq!((length("[1,[2],{}]"), length("[]"), length("{}"), length("null")), (Some(3), Some(0), None, None));
        let prose = |json: &str| serde_json::from_str::<Prose>(json).unwrap().0;
        for text in ["what is it?", "the best one, please", "¿qué?"] {
            assert!(prose(&serde_json::to_string(text).unwrap()), "{text}");
        }
        for text in ["subscription { x }", "query{a}", "{ a }", "SELECT 1", "", "from logs | limit 3"] {
            assert!(!prose(&serde_json::to_string(text).unwrap()), "{text}");
        }
        assert!(!prose(r#"{"match":{}}"#));
    }
}
