//! Verifies the certificate of the server.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use rustls_platform_verifier::Verifier;
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::types::error::ConnectError;

/// The proof of its identity that the server must give. The trusted authorities are those in the file, or those of the
/// system if there is no file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Trust {
    /// The server gives no proof. The connection is encrypted, but the server is not verified (`sslmode=require`).
    Anybody,
    /// The server has a certificate of a trusted authority, for any name: `sslmode=verify-ca`.
    Authority(Option<PathBuf>),
    /// The server has a certificate of a trusted authority that names the host: `sslmode=verify-full`.
    Name(Option<PathBuf>),
}

pub(super) fn tls_connector(trust: &Trust) -> Result<MakeRustlsConnect, ConnectError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let bad = |error: rustls::Error| ConnectError::new(format!("postgres: TLS: {error}"));
    let verifier: Arc<dyn ServerCertVerifier> = match trust {
        Trust::Anybody => Arc::new(Lenient { roots: None, provider: Arc::clone(&provider) }),
        Trust::Authority(Some(file)) => {
            Arc::new(Lenient { roots: Some(read_roots(file)?), provider: Arc::clone(&provider) })
        }
        Trust::Name(Some(file)) => {
            let roots = Arc::new(read_roots(file)?);
            let builder = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider));
            builder.build().map_err(|error| {
                ConnectError::new(format!("sslrootcert: {}: {error}", file.display()))
            })?
        }
        // Public authorities sign certificates for anyone. Therefore, only the name in the certificate identifies the
        // server.
        Trust::Authority(None) | Trust::Name(None) => {
            Arc::new(Verifier::new(Arc::clone(&provider)).map_err(bad)?)
        }
    };
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(bad)?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}

fn read_roots(file: &Path) -> Result<RootCertStore, ConnectError> {
    let bad =
        |error: String| ConnectError::new(format!("sslrootcert: {}: {error}", file.display()));
    let mut roots = RootCertStore::empty();
    let found = CertificateDer::pem_file_iter(file).map_err(|error| bad(error.to_string()))?;
    for certificate in found {
        let certificate = certificate.map_err(|error| bad(error.to_string()))?;
        roots.add(certificate).map_err(|error| bad(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(bad("the file contains no certificate".to_owned()));
    }
    Ok(roots)
}

/// Accepts a server that has the private key of a certificate signed by one of `roots`. Any certificate is accepted if
/// `roots` is `None`. The name in the certificate is not checked.
#[derive(Debug)]
struct Lenient {
    roots: Option<RootCertStore>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Lenient {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        // `verify-ca` accepts a certificate with any name, so the name is not compared.
        if let Some(roots) = &self.roots {
            let algorithms = self.provider.signature_verification_algorithms.all;
            let certificate = ParsedCertificate::try_from(certificate)?;
            verify_server_cert_signed_by_trust_anchor(
                &certificate,
                roots,
                others,
                now,
                algorithms,
            )?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
