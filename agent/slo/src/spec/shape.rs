//! The shapes of documents, as tables. One source for the strict reader ([`super::read`]), for the nearest right key in its errors, for
//! the JSON Schema and for the reference in the README.

/// What a value may be.
#[derive(Clone, Copy, Debug)]
pub enum Ty {
    /// Any text.
    Text,
    /// One of these texts, by the reader.
    Word(&'static [&'static str]),
    /// One of these texts: an OpenSLO name that its decoder checks.
    Name(&'static [&'static str]),
    /// A text of our own with a form that its parser checks: what it is called, a regular expression for editors, an example.
    Form(&'static Form),
    /// `true` or `false`.
    Bool,
    /// Any number.
    Number,
    /// A whole number.
    Integer,
    /// OpenSLO's duration shorthand as its Go SDK reads it.
    Shorthand,
    /// Anything.
    Any,
    /// A map with any content.
    AnyMap,
    /// A map of texts.
    Texts,
    /// A map of texts or lists of texts.
    Labels,
    /// A map with these keys.
    Object(&'static Object),
    /// A map from a text key of a form to values of a type.
    Keyed(&'static Form, &'static Ty),
    /// A list.
    List(&'static Ty),
    /// One of these, told apart by the kind of value: texts and numbers, lists, maps.
    Either(&'static [Ty]),
}

/// A text with a form.
#[derive(Debug)]
pub struct Form {
    /// What it is, for errors: "a duration".
    pub what: &'static str,
    /// A regular expression that editors check it with; not more lenient than needed, never stricter than the parser.
    pub pattern: &'static str,
    /// Something right.
    pub example: &'static str,
    /// Whether a plain number will do as well.
    pub number: bool,
}

/// A map with known keys.
#[derive(Debug)]
pub struct Object {
    /// Its name in the schema.
    pub name: &'static str,
    /// What it is, in a sentence.
    pub doc: &'static str,
    /// Its keys.
    pub fields: &'static [Field],
}

/// A key.
#[derive(Debug)]
pub struct Field {
    /// As it is written.
    pub key: &'static str,
    /// What it holds.
    pub ty: Ty,
    /// Whether it must be there.
    pub required: bool,
    /// What it means, in a sentence.
    pub doc: &'static str,
}

/// A field that must be there.
pub const fn must(key: &'static str, ty: Ty, doc: &'static str) -> Field {
    Field { key, ty, required: true, doc }
}

/// A field that may be absent.
pub const fn may(key: &'static str, ty: Ty, doc: &'static str) -> Field {
    Field { key, ty, required: false, doc }
}

impl Object {
    /// The field of a key.
    pub fn field(&self, key: &str) -> Option<&'static Field> {
        self.fields.iter().find(|f| f.key == key)
    }

    /// The key that a wrong one most probably was meant to be.
    pub fn nearest(&self, key: &str) -> Option<&'static str> {
        nearest(key, self.fields.iter().map(|f| f.key))
    }
}

impl Ty {
    /// What is expected, for errors.
    pub fn expected(&self) -> String {
        match self {
            Self::Text => "a text".into(),
            Self::Word(words) | Self::Name(words) => format!("one of {}", list(words)),
            Self::Form(form) => format!("{} such as `{}`", form.what, form.example),
            Self::Bool => "true or false".into(),
            Self::Number => "a number".into(),
            Self::Integer => "a whole number".into(),
            Self::Shorthand => "a duration such as `30d` (m minutes, h, d, w, M months, Q, Y)".into(),
            Self::Any => "anything".into(),
            Self::AnyMap => "a map".into(),
            Self::Texts => "a map of texts".into(),
            Self::Labels => "a map of texts or lists of texts".into(),
            Self::Object(object) => format!("a map with {}", list(&object.fields.iter().map(|f| f.key).take(12).collect::<Vec<_>>())),
            Self::Keyed(form, ty) => format!("a map from {} to {}", form.what, ty.expected()),
            Self::List(ty) => format!("a list of {}", ty.plural()),
            Self::Either(types) => types.iter().map(Self::expected).collect::<Vec<_>>().join(", or "),
        }
    }

    fn plural(&self) -> String {
        match self {
            Self::Text | Self::Form(_) | Self::Word(_) | Self::Name(_) => "texts".into(),
            Self::Object(_) => "maps".into(),
            Self::Number | Self::Integer => "numbers".into(),
            other => other.expected(),
        }
    }
}

/// `a`, `b` and `c`.
pub fn list(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|w| format!("`{w}`")).collect();
    match quoted.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => quoted.concat(),
    }
}

/// The candidate nearest to a word, when one is near: about a third of its letters changed at most, case and separators apart.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let bare = |s: &str| s.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).take(40).collect::<Vec<char>>();
    let wanted = bare(word);
    let best = candidates.into_iter().map(|c| (distance(&wanted, &bare(c)), c)).min_by_key(|(d, _)| *d)?;
    (best.0 <= wanted.len().div_ceil(3)).then_some(best.1)
}

fn distance(a: &[char], b: &[char]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let change = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}
