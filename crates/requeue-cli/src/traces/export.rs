//! Sends spans by OTLP over HTTP, with the HTTP client of this program.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use std::{env, fmt};

use http_body_util::{BodyExt, Full, Limited};
use hyper::Uri;
use hyper::client::conn::http1;
use hyper::header::{HOST, HeaderValue};
use hyper_util::rt::TokioIo;
use opentelemetry::{Key, global};
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::resource::{EnvResourceDetector, ResourceDetector as _};
use opentelemetry_sdk::trace::SdkTracerProvider;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::exit::complain;
use crate::tls::{trust_file, trust_system};

/// The environment variables with the address of the collector. The first one that is set is used.
const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];
/// The environment variables with a file of certificates. The program trusts these certificates in place of those of
/// the system.
const CERTIFICATES: [&str; 2] =
    ["OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "OTEL_EXPORTER_OTLP_CERTIFICATE"];
/// The time limit of a request.
const PATIENCE: Duration = Duration::from_secs(10);
/// The maximum size of an answer, in bytes.
const ANSWER: usize = 64 << 10;

static IS_ON: OnceLock<()> = OnceLock::new();

/// The export of spans. `None` if the environment does not configure one.
pub(crate) struct Export(Option<SdkTracerProvider>);

impl Export {
    /// Starts the export if the environment names a collector. A platform may set the variables for all its programs.
    /// A collector that cannot be used therefore causes a warning and does not stop the program.
    pub(crate) fn start() -> Self {
        Self(Self::try_start().unwrap_or_else(|why| {
            complain(&format!("no spans are sent: {why}"));
            None
        }))
    }

    /// Starts the export. Returns the reason if the environment names a collector that cannot be used. No message
    /// contains the whole URL, because the URL may contain a password.
    fn try_start() -> Result<Option<SdkTracerProvider>, String> {
        let set = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        let is_off = set("OTEL_SDK_DISABLED")
            .is_some_and(|value| value.eq_ignore_ascii_case("true"))
            || set("OTEL_TRACES_EXPORTER").is_some_and(|value| value == "none");
        let found = ENDPOINTS.iter().find_map(|name| Some((name, set(name)?)));
        let Some((name, url)) = found.filter(|_| !is_off) else { return Ok(None) };
        let url: Uri = url.parse().map_err(|error| format!("{name}: {error}"))?;
        let tls = match url.scheme_str() {
            Some("http") => None,
            Some("https") => {
                let file = CERTIFICATES.iter().find_map(|name| Some((name, set(name)?)));
                let config = match file {
                    Some((name, file)) => trust_file(Path::new(&file)).map_err(|error| {
                        format!("{name}: {file}: {error}; name a PEM file with certificates")
                    })?,
                    None => trust_system().map_err(|error| format!("TLS: {error}"))?,
                };
                Some(TlsConnector::from(Arc::new(config)))
            }
            _ => return Err(format!("{name}: the URL begins with neither http:// nor https://")),
        };
        let (runtime, has_failed) = (Handle::current(), AtomicBool::new(false));
        let client = Client { runtime, tls, has_failed };
        let exporter = SpanExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpBinary)
            .with_http_client(client)
            .build()
            .map_err(|error| format!("{}: {error}", host_and_port(&url)))?;
        let mut resource = Resource::builder();
        let named = EnvResourceDetector::new().detect().get(&Key::new("service.name"));
        if set("OTEL_SERVICE_NAME").is_none() && named.is_none() {
            resource = resource.with_service_name("requeue");
        }
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_resource(resource.build())
            .build();
        global::set_tracer_provider(provider.clone());
        let _ = IS_ON.set(());
        Ok(Some(provider))
    }

    /// Returns true if spans are exported.
    pub(crate) fn is_on() -> bool {
        IS_ON.get().is_some()
    }

    /// Sends the remaining spans.
    pub(crate) async fn finish(self) {
        let Some(provider) = self.0 else { return };
        // `shutdown` blocks until the client has used the runtime, so it runs on a thread for blocking calls. The
        // client itself reports its failures.
        let _ = tokio::task::spawn_blocking(move || provider.shutdown()).await;
    }
}

/// The HTTP client of the exporter. It holds a handle of the runtime, because the exporter's thread has none.
struct Client {
    runtime: Handle,
    /// The encryption. `None` for a collector at an http address.
    tls: Option<TlsConnector>,
    /// True after a failure was reported.
    has_failed: AtomicBool,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A TLS connector does not implement `Debug`, so it is left out.
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

#[async_trait::async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let to = host_and_port(request.uri());
        let tls = self.tls.clone();
        let sent = self.runtime.spawn(async { timeout(PATIENCE, send(request, tls)).await });
        let answer = match sent.await {
            Ok(Ok(answer)) => answer,
            Ok(Err(late)) => Err(late.into()),
            Err(stopped) => Err(stopped.into()),
        };
        let why = match &answer {
            Ok(answer) if answer.status().is_success() => None,
            Ok(answer) => Some(answer.status().to_string()),
            Err(error) => Some(error.to_string()),
        };
        match why {
            None => self.has_failed.store(false, Ordering::Relaxed),
            Some(why) if !self.has_failed.swap(true, Ordering::Relaxed) => {
                complain(&format!("spans are lost: {to}: {why}"));
            }
            Some(_) => {}
        }
        answer
    }
}

/// Returns the host and the port of a URL, without its user name and password.
fn host_and_port(url: &Uri) -> String {
    let host = url.host().unwrap_or_default();
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

async fn send(
    request: Request<Bytes>,
    tls: Option<TlsConnector>,
) -> Result<Response<Bytes>, HttpError> {
    let authority = request.uri().authority().ok_or("the URL has no host")?;
    let host = authority.host().trim_matches(['[', ']']).to_owned();
    let port = authority.port_u16().unwrap_or(if tls.is_some() { 443 } else { 80 });
    let stream = TcpStream::connect((&*host, port)).await?;
    match tls {
        Some(tls) => {
            exchange(tls.connect(ServerName::try_from(host)?, stream).await?, request).await
        }
        None => exchange(stream, request).await,
    }
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    mut request: Request<Bytes>,
) -> Result<Response<Bytes>, HttpError> {
    let uri = request.uri().clone();
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    request.headers_mut().insert(HOST, HeaderValue::from_str(&host_and_port(&uri))?);
    *request.uri_mut() = uri.path_and_query().map_or("/", |path| path.as_str()).parse()?;
    let answered = async {
        let (parts, body) = sender.send_request(request.map(Full::new)).await?.into_parts();
        let body = Limited::new(body, ANSWER).collect().await?.to_bytes();
        Ok(Response::from_parts(parts, body))
    };
    tokio::pin!(answered);
    tokio::select! {
        answer = &mut answered => answer,
        // The connection was closed. The answer may have arrived before that.
        _ = connection => answered.await,
    }
}
