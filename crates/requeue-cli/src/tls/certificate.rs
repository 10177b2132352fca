//! The certificate of `--serve`. It is read again after its files were replaced.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use requeue_http::TlsListener;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::net::TcpListener;

use crate::exit::Refusal;
use crate::key::escaped;

/// The shortest time between two checks of the files.
const LOOK: Duration = Duration::from_secs(1);

/// The encryption of a dashboard.
#[derive(Clone, Debug)]
pub(crate) struct ServerTls(Arc<ServerConfig>);

impl ServerTls {
    /// Reads the certificate, the certificates of its authorities, and its private key.
    pub(crate) fn new(chain: &Path, key: &Path) -> Result<Self, Refusal> {
        let files = [chain, key].map(Path::to_owned);
        let stamp = stamp_of(&files);
        let current = Arc::new(read_files(&files).map_err(Refusal::usage)?);
        let state = Mutex::new(State { current, stamp, looked: Instant::now() });
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| Refusal::failure(format!("--tls-cert: {error}")))?;
        let certificate = Arc::new(Certificate { files, state });
        let mut config = config.with_no_client_auth().with_cert_resolver(certificate);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self(Arc::new(config)))
    }

    pub(crate) fn encrypt(self, listener: TcpListener) -> TlsListener<TcpListener> {
        TlsListener::new(listener, self.0)
    }
}

/// The certificate and its private key, in two files.
#[derive(Debug)]
struct Certificate {
    files: [PathBuf; 2],
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    current: Arc<CertifiedKey>,
    /// The state of the files when they were last read.
    stamp: Stamp,
    looked: Instant,
}

/// The time and the size of each file. At least one of them changes when a file is replaced.
type Stamp = [Option<(SystemTime, u64)>; 2];

fn stamp_of(files: &[PathBuf; 2]) -> Stamp {
    files.each_ref().map(|file| {
        let found = fs::metadata(file).ok()?;
        Some((found.modified().ok()?, found.len()))
    })
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let mut state = self.state.lock();
        if state.looked.elapsed() >= LOOK {
            state.looked = Instant::now();
            let stamp = stamp_of(&self.files);
            if stamp != state.stamp {
                state.stamp = stamp;
                match read_files(&self.files) {
                    Ok(renewed) => state.current = Arc::new(renewed),
                    // A renewal replaces one file after the other, so the files may not match yet.
                    Err(why) => tracing::warn!("{why}; the previous certificate is used"),
                }
            }
        }
        Some(Arc::clone(&state.current))
    }
}

/// Reads all certificates of a file, of which there is at least one.
pub(super) fn read_certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    const NONE: &str = "the file has no certificate; pass one in PEM";
    let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect);
    let certificates: Vec<_> = read.map_err(|error| without_bytes(error, NONE))?;
    if certificates.is_empty() { Err(NONE.to_owned()) } else { Ok(certificates) }
}

/// Describes an error of a PEM file. If the file was read, the description is `otherwise`, because the text of the error
/// contains bytes of the file, and the file may contain a private key.
fn without_bytes(error: pem::Error, otherwise: &str) -> String {
    match error {
        pem::Error::Io(error) => error.to_string(),
        _ => otherwise.to_owned(),
    }
}

fn read_files([chain_file, key_file]: &[PathBuf; 2]) -> Result<CertifiedKey, String> {
    let name = |flag: &str, file: &Path| format!("{flag} {}", escaped(file.as_os_str().as_bytes()));
    let chain_name = name("--tls-cert", chain_file);
    let chain = read_certificates(chain_file).map_err(|why| format!("{chain_name}: {why}"))?;
    let key_name = name("--tls-key", key_file);
    let no_key = "the file has no unencrypted private key in PEM; pass one, as `openssl pkey -in FILE` prints it";
    let key = PrivateKeyDer::from_pem_file(key_file)
        .map_err(|error| format!("{key_name}: {}", without_bytes(error, no_key)))?;
    let key =
        ring::sign::any_supported_type(&key).map_err(|error| format!("{key_name}: {error}"))?;
    let certified = CertifiedKey::new(chain, key);
    match certified.keys_match() {
        // Some kinds of keys cannot be compared.
        Ok(()) | Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => {
            Ok(certified)
        }
        Err(_) => {
            Err(format!("{key_name}: the key does not belong to the certificate of {chain_name}"))
        }
    }
}
