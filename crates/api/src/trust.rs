//! Which certificates a client of https URLs trusts.

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, Error, SignatureScheme};
use sha2::{Digest, Sha256};
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

/// Which certificates a client trusts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// Those that the certificate authorities of the system signed, or on Linux those of
    /// `SSL_CERT_FILE`.
    #[default]
    System,
    /// Those that one of these authorities signed, and no others.
    Authorities(Vec<CertificateDer<'static>>),
    /// This one, whoever signed it. Its names and dates are not checked: the fingerprint says more.
    Pinned(Fingerprint),
}

impl Trust {
    /// The authorities of a PEM file.
    pub fn authorities(file: &Path) -> Result<Trust, String> {
        let failed = |why: &dyn fmt::Display| format!("{}: {why}", file.display());
        let read = CertificateDer::pem_file_iter(file).map_err(|e| failed(&e))?;
        let all = read.collect::<Result<Vec<_>, _>>().map_err(|e| failed(&e))?;
        match all.is_empty() {
            true => Err(failed(&"it has no certificate; it must be in PEM format (-----BEGIN CERTIFICATE-----)")),
            false => Ok(Trust::Authorities(all)),
        }
    }
}

/// SHA-256 of a certificate in DER.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// The fingerprint of a certificate.
    pub fn of(certificate: &CertificateDer<'_>) -> Fingerprint {
        Fingerprint(Sha256::digest(certificate.as_ref()).into())
    }
}

impl FromStr for Fingerprint {
    type Err = String;

    /// 64 hexadecimal digits. Colons between them, as openssl prints, and `sha256:` before them are
    /// allowed.
    fn from_str(text: &str) -> Result<Fingerprint, String> {
        let wrong = || {
            "expected the SHA-256 of a certificate, 64 hexadecimal digits, as `openssl x509 -noout -fingerprint \
             -sha256` prints it"
                .to_string()
        };
        let text = text.trim();
        let digits: String = text.strip_prefix("sha256:").unwrap_or(text).chars().filter(|c| *c != ':').collect();
        if digits.len() != 64 || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(wrong());
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| wrong())?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| wrong())?;
        }
        Ok(Fingerprint(bytes))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{self}")
    }
}

/// Accepts one certificate. The handshake proves that the server has its private key.
#[derive(Debug)]
pub(crate) struct PinnedVerifier {
    pub(crate) pin: Fingerprint,
    pub(crate) provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for PinnedVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let found = Fingerprint::of(certificate);
        match found == self.pin {
            true => Ok(ServerCertVerified::assertion()),
            false => {
                Err(Error::General(format!("the server's certificate is {found:?}, not the pinned {:?}", self.pin)))
            }
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_parse_as_openssl_prints_them() {
        let digits = "0123456789abcdef".repeat(4);
        let with_colons: Vec<String> =
            digits.to_uppercase().as_bytes().chunks(2).map(|pair| String::from_utf8_lossy(pair).into_owned()).collect();
        for text in [digits.clone(), format!("sha256:{digits}"), with_colons.join(":")] {
            let fingerprint: Fingerprint = text.parse().unwrap();
            assert_eq!(fingerprint.to_string(), digits, "{text}");
        }
        for wrong in ["", "sha256:", &digits[1..], &digits.replace('0', "g"), &format!("{digits}00"), &"é".repeat(32)]
        {
            assert!(wrong.parse::<Fingerprint>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn file_without_certificates_is_refused() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        assert!(Trust::authorities(&file).is_err());
        assert!(Trust::authorities(Path::new("/nowhere/ca.pem")).unwrap_err().contains("/nowhere/ca.pem"));
    }
}
