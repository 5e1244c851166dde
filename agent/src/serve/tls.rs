//! TLS of the listener: a certificate from files that may be renewed beneath it.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::Tls;

/// What tells that the files have changed: times and lengths.
type Seen = [Option<(SystemTime, u64)>; 2];

/// Makes handshakes with the certificate as it is now.
pub struct Acceptor {
    files: Tls,
    now: Mutex<(Seen, TlsAcceptor)>,
}

impl Acceptor {
    /// Reads both files.
    ///
    /// # Errors
    /// When they cannot be read, are no PEM, or do not belong together; the message names the key of the configuration and the file.
    pub fn new(files: &Tls) -> Result<Self, String> {
        let seen = seen(files);
        Ok(Self { now: Mutex::new((seen, read(files)?)), files: files.clone() })
    }

    /// The certificate as it is in the files; the last good one while they are broken, as between the writing of the one and the other.
    pub fn get(&self) -> TlsAcceptor {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        let new = seen(&self.files);
        if new != now.0 {
            now.0 = new;
            match read(&self.files) {
                Ok(acceptor) => {
                    tracing::info!("{}: the certificate was read again", self.files.certificate.display());
                    now.1 = acceptor;
                }
                Err(error) => tracing::error!("http.{error}: the certificate that was read before stays in use"),
            }
        }
        now.1.clone()
    }
}

fn seen(files: &Tls) -> Seen {
    [&files.certificate, &files.key].map(|path| {
        let meta = std::fs::metadata(path).ok()?;
        Some((meta.modified().ok()?, meta.len()))
    })
}

fn read(files: &Tls) -> Result<TlsAcceptor, String> {
    let wrong = |key: &str, path: &Path, what: &dyn std::fmt::Display| format!("tls.{key}: {}: {what}", path.display());
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(&files.certificate)
        .and_then(Iterator::collect)
        .map_err(|e| wrong("certificate", &files.certificate, &e))?;
    if chain.is_empty() {
        return Err(wrong("certificate", &files.certificate, &"holds no certificate (PEM)"));
    }
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|e| wrong("key", &files.key, &e))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|e| wrong("certificate", &files.certificate, &e))?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(|e| wrong("key", &files.key, &e))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
