//! The certificate authorities that the program trusts as a client. They come from the system or from a file.

use std::error::Error;
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{CertificateError, ClientConfig, RootCertStore};
use rustls_platform_verifier::Verifier;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::exit::Refusal;
use crate::key::escaped;
use crate::tls::certificate::read_certificates;

pub(crate) fn trust_system() -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = Arc::new(Verifier::new(Arc::clone(&provider))?);
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    Ok(config.with_no_client_auth())
}

pub(crate) fn trust_file(file: &Path) -> Result<ClientConfig, Box<dyn Error>> {
    let mut roots = RootCertStore::empty();
    for certificate in read_certificates(file)? {
        roots.add(certificate)?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    Ok(config.with_no_client_auth())
}

/// Makes encrypted connections to the server of `--server`.
#[derive(Clone)]
pub(crate) struct Connector(TlsConnector);

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").finish_non_exhaustive()
    }
}

impl Connector {
    /// Trusts the authorities in `file`, or those of the system if there is no file.
    pub(crate) fn new(file: Option<&Path>) -> Result<Self, Refusal> {
        let config = match file {
            Some(file) => trust_file(file).map_err(|error| {
                let file = escaped(file.as_os_str().as_bytes());
                Refusal::usage(format!("--server-ca {file}: {error}"))
            })?,
            None => trust_system().map_err(|error| {
                let next = "pass --server-ca FILE";
                Refusal::failure(format!(
                    "--server: no authorities of this system: {error}; {next}"
                ))
            })?,
        };
        Ok(Self(Arc::new(config).into()))
    }

    /// Encrypts a connection to the host with this name or address, and verifies the certificate of the host.
    pub(crate) async fn connect(
        &self,
        host: &str,
        stream: TcpStream,
    ) -> io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(host.to_owned());
        let name = name.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        self.0.connect(name, stream).await
    }
}

/// Returns the next step for the user after a failed handshake. Returns `None` if the connection itself has failed.
pub(crate) fn hint_for(error: &io::Error) -> Option<&'static str> {
    let error = error.get_ref()?.downcast_ref::<rustls::Error>()?;
    Some(match error {
        // If another authority has the same name, the signature of the certificate is wrong.
        rustls::Error::InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::BadSignature,
        ) => "; pass the certificate of its authority as --server-ca FILE",
        rustls::Error::InvalidCertificate(
            CertificateError::Expired | CertificateError::ExpiredContext { .. },
        ) => "; renew the certificate of the server",
        rustls::Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => "; use a name of the certificate in the URL",
        // The verifier has no public type for this case. `openssl req -x509` makes such certificates by default.
        rustls::Error::InvalidCertificate(CertificateError::Other(other))
            if other.to_string().contains("CaUsedAsEndEntity") =>
        {
            "; the certificate is that of an authority: make that of the server with basicConstraints=CA:FALSE"
        }
        rustls::Error::InvalidCertificate(_) => {
            "; replace the certificate of the server, or pass that of its authority as --server-ca FILE"
        }
        rustls::Error::InvalidMessage(_) => "; the server may have no TLS: use http://",
        _ => "",
    })
}
