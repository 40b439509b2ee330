//! TLS of the listener.

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Time-out of a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The certificate of a server and its private key. `Debug` does not print them.
#[derive(Clone)]
pub struct Tls(TlsAcceptor);

impl Tls {
    /// Reads PEM files: the certificate, followed by the intermediate ones, and the private key.
    pub fn read(certificate: &Path, key: &Path) -> Result<Tls, String> {
        let failed = |file: &Path, why: &dyn fmt::Display| format!("{}: {why}", file.display());
        let read = CertificateDer::pem_file_iter(certificate).map_err(|e| failed(certificate, &e))?;
        let chain = read.collect::<Result<Vec<_>, _>>().map_err(|e| failed(certificate, &e))?;
        if chain.is_empty() {
            return Err(failed(certificate, &"it has no certificate in PEM format (-----BEGIN CERTIFICATE-----)"));
        }
        let private = PrivateKeyDer::from_pem_file(key).map_err(|e| failed(key, &e))?;
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, private));
        let mut config = config.map_err(|e| failed(certificate, &format!("{e} (with the key {})", key.display())))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Tls(TlsAcceptor::from(Arc::new(config))))
    }

    pub(crate) async fn accept<S: AsyncRead + AsyncWrite + Unpin>(&self, stream: S) -> io::Result<TlsStream<S>> {
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, "the client did not finish its TLS handshake in time");
        tokio::time::timeout(HANDSHAKE_TIMEOUT, self.0.accept(stream)).await.map_err(late)?
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls(..)")
    }
}
