//! Bearer tokens (RFC 6750) from a file.

use std::path::PathBuf;

/// Most bytes that are read of a file of tokens.
const MAX_FILE: u64 = 64 << 10;

/// The tokens in a file, one a line, so that a new one can be rolled out beside the old one.
#[derive(Debug)]
pub struct Tokens(PathBuf);

impl Tokens {
    /// Those in the file at `path`.
    ///
    /// # Errors
    /// When it cannot be read or holds none: then nobody could ever come in.
    pub fn open(path: PathBuf) -> Result<Self, String> {
        let tokens = Self(path);
        match tokens.read() {
            Ok(all) if all.is_empty() => Err(format!("bearer_token_file: {}: holds no token", tokens.0.display())),
            Ok(_) => Ok(tokens),
            Err(error) => Err(format!("bearer_token_file: {}: {error}", tokens.0.display())),
        }
    }

    /// Whether the value of an `Authorization` header holds one of them. The file is read anew: secrets are changed beneath a running process.
    pub fn allow(&self, authorization: Option<&[u8]>) -> bool {
        let Some(given) = authorization.and_then(bearer) else { return false };
        match self.read() {
            // Every token is compared to its end, so that time tells nothing of where they differ.
            Ok(tokens) => tokens.iter().fold(false, |found, token| found | same(token.as_bytes(), given)),
            Err(error) => {
                tracing::error!("{}: {error}: nobody is let in", self.0.display());
                false
            }
        }
    }

    fn read(&self) -> std::io::Result<Vec<String>> {
        use std::io::Read as _;
        let mut text = String::new();
        std::fs::File::open(&self.0)?.take(MAX_FILE).read_to_string(&mut text)?;
        Ok(text.lines().map(str::trim).filter(|l| !l.is_empty()).map(str::to_owned).collect())
    }
}

/// The token of a header: the scheme's case does not matter (RFC 9110 §11.1).
fn bearer(header: &[u8]) -> Option<&[u8]> {
    let (scheme, rest) = header.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| rest.trim_ascii())
}

/// Whether both are the same, in a time that depends on their lengths only.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && std::hint::black_box(a.iter().zip(b).fold(0, |sum, (x, y)| sum | (x ^ y))) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_the_file_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        std::fs::write(&path, "\n").unwrap();
        assert!(Tokens::open(path.clone()).unwrap_err().ends_with("holds no token"));
        std::fs::write(&path, "old\nnew token\n\n").unwrap();
        let tokens = Tokens::open(path.clone()).unwrap();
        for (header, want) in [
            (Some("Bearer old"), true),
            (Some("bearer  old "), true),
            (Some("Bearer new token"), true),
            (Some("Bearer ol"), false),
            (Some("Bearer "), false),
            (Some("Basic old"), false),
            (Some("old"), false),
            (None, false),
        ] {
            assert_eq!(tokens.allow(header.map(str::as_bytes)), want, "{header:?}");
        }
        std::fs::write(&path, "next").unwrap();
        assert!(tokens.allow(Some(b"Bearer next")) && !tokens.allow(Some(b"Bearer old")));
        std::fs::remove_file(&path).unwrap();
        assert!(!tokens.allow(Some(b"Bearer next")));
    }
}
