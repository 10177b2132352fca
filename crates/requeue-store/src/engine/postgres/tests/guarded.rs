//! Tests servers that request the password before they have proved their identity.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::*;
use crate::api::store::Store;
use crate::types::error::{ErrorKind, chain};

const PASSWORD: &str = "s3cret";
const CLEAR_TEXT: &[u8] = &[0, 0, 0, 3];
const MD5: &[u8] = &[0, 0, 0, 5, 1, 2, 3, 4];
const SCRAM: &[u8] = b"\0\0\0\x0aSCRAM-SHA-256\0\0";

/// A server that requests the password of one client, and records the answer.
struct Asking {
    port: u16,
    heard: JoinHandle<Vec<u8>>,
}

/// The message that stops the server if no client has connected to it.
const NOBODY: &[u8] = b"nobody";

impl Asking {
    /// Starts the server. With `tls`, the server has a certificate for `localhost`.
    fn start(tls: Option<Arc<ServerConfig>>, request: &'static [u8]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let port = listener.local_addr().expect("the listener is bound").port();
        let heard = std::thread::spawn(move || {
            let (stream, _) = listener.accept().expect("a client connects");
            // The thread returns the bytes that the client has sent, even if the client has closed the connection.
            serve(stream, tls, request)
        });
        Self { port, heard }
    }

    /// Returns the client's answer. It is empty if no client has connected.
    fn heard(self) -> Vec<u8> {
        if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port)) {
            let _ = stream.write_all(NOBODY);
        }
        self.heard.join().expect("the thread does not panic")
    }
}

fn serve(mut stream: TcpStream, tls: Option<Arc<ServerConfig>>, request: &[u8]) -> Vec<u8> {
    let mut first = message(&mut stream);
    // These bytes are the code of a request for TLS.
    if first.starts_with(&[4, 210, 22, 47]) {
        let Some(config) = tls else {
            stream.write_all(b"N").expect("the message is sent");
            first = message(&mut stream);
            return if first.is_empty() { Vec::new() } else { ask(stream, request) };
        };
        stream.write_all(b"S").expect("the message is sent");
        let connection = ServerConnection::new(config).expect("the configuration is valid");
        let mut stream = StreamOwned::new(connection, stream);
        first = message(&mut stream);
        return if first.is_empty() { Vec::new() } else { ask(stream, request) };
    }
    if first.is_empty() { Vec::new() } else { ask(stream, request) }
}

/// Reads a message that has no type letter. Returns an empty message if none arrives.
fn message(stream: &mut impl Read) -> Vec<u8> {
    let mut length = [0; 4];
    if stream.read_exact(&mut length).is_err() || length.starts_with(b"nobo") {
        return Vec::new();
    }
    let mut content = vec![0; (u32::from_be_bytes(length) as usize).saturating_sub(4)];
    if stream.read_exact(&mut content).is_err() { Vec::new() } else { content }
}

/// Sends the request. Returns the answer without its length.
fn ask(mut stream: impl Read + Write, request: &[u8]) -> Vec<u8> {
    let length = u32::try_from(request.len() + 4).expect("the length fits").to_be_bytes();
    stream.write_all(&[b"R", &length[..], request].concat()).expect("the message is sent");
    stream.flush().expect("the message is sent");
    let mut heard = Vec::new();
    let mut letter = [0];
    if stream.read_exact(&mut letter).is_ok() {
        heard = [&letter[..], &message(&mut stream)].concat();
    }
    heard
}

fn tls(server: &Server) -> Arc<ServerConfig> {
    let certificate = server.certificate();
    let key = PrivateKeyDer::from_pem_file(certificate.with_file_name("server.key"));
    let certificate = CertificateDer::from_pem_file(certificate).expect("the certificate is read");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the versions are supported")
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key.expect("the key is read"));
    Arc::new(config.expect("the key matches the certificate"))
}

/// Returns the client's error, and the bytes that the server has received. With `is_far`, the test treats the server as
/// if it were reached over a network.
async fn asked(server: Asking, options: &str, is_far: bool) -> (ErrorKind, String, Vec<u8>) {
    let url = format!("postgres://ann:{PASSWORD}@localhost:{}/d{options}", server.port);
    let mut address = Address::parse(&url).expect("the address is valid");
    assert_eq!(address.negotiation, None, "localhost must count as local");
    if is_far && address.trust == tls::Trust::Anybody {
        address.guard_passwords();
    }
    let engine = Postgres::new(address, WHOLE).expect("the engine is created");
    let fault = engine
        .sessions
        .open_session()
        .await
        .map(|_| ())
        .expect_err("the server fails the handshake");
    let kind = fault.source.downcast_ref::<crate::types::error::Reason>().map(|reason| reason.kind);
    let kind = kind.unwrap_or(ErrorKind::Unreachable);
    (kind, fault.source.to_string(), server.heard())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_password_is_sent_to_a_server_that_is_not_verified() {
    let Some(server) = Server::shared() else { return };
    let config = tls(server);
    for (request, what) in [(CLEAR_TEXT, "in clear text"), (MD5, "an MD5 hash")] {
        for (has_tls, options, why) in [
            (false, "", "the connection is not encrypted"),
            (false, "?sslmode=prefer", "the connection is not encrypted"),
            (false, "?sslmode=disable", "the connection is not encrypted"),
            (true, "?sslmode=disable", "the connection is not encrypted"),
            (true, "", "TLS has not verified the identity of the server"),
            (true, "?sslmode=prefer", "TLS has not verified the identity of the server"),
            (true, "?sslmode=require", "TLS has not verified the identity of the server"),
        ] {
            let asking = Asking::start(has_tls.then(|| Arc::clone(&config)), request);
            let (kind, said, heard) = asked(asking, options, true).await;
            assert_eq!(heard, b"", "{options} {what}");
            assert_eq!(kind, ErrorKind::Tls, "{said}");
            for expected in
                ["localhost asks for ", what, why, "sslmode=verify-full", "scram-sha-256"]
            {
                assert!(said.contains(expected), "{options}: {said}");
            }
            assert!(!said.contains(PASSWORD), "{said}");
        }
        // If TLS is required, the client sends no message to a server without TLS.
        let roots = format!("sslrootcert={}", server.certificate().display());
        for options in [
            "?sslmode=require".to_owned(),
            "?sslmode=verify-ca".to_owned(),
            "?sslmode=verify-full".to_owned(),
            "?sslrootcert=system".to_owned(),
            format!("?{roots}"),
        ] {
            let (_, said, heard) = asked(Asking::start(None, request), &options, true).await;
            assert_eq!(heard, b"", "{options}");
            assert!(said.contains("does not support TLS"), "{options}: {said}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_is_sent_to_a_server_that_is_verified_or_local() {
    let Some(server) = Server::shared() else { return };
    let config = tls(server);
    let roots = format!("sslrootcert={}", server.certificate().display());
    let clear = format!("p{PASSWORD}\0").into_bytes();
    for (has_tls, options, is_far) in [
        (true, format!("?sslmode=verify-full&{roots}"), true),
        (true, format!("?sslmode=verify-ca&{roots}"), true),
        (true, format!("?sslmode=require&{roots}"), true),
        (true, format!("?{roots}"), true),
        (false, String::new(), false),
        (false, "?sslmode=disable".to_owned(), false),
    ] {
        let config = has_tls.then(|| Arc::clone(&config));
        let (.., heard) = asked(Asking::start(config.clone(), CLEAR_TEXT), &options, is_far).await;
        assert_eq!(heard, clear, "{options}");
        let (.., heard) = asked(Asking::start(config, MD5), &options, is_far).await;
        assert!(heard.starts_with(b"pmd5"), "{options}");
    }
    // SCRAM does not reveal the password, so it is permitted on any connection.
    for has_tls in [true, false] {
        let config = has_tls.then(|| Arc::clone(&config));
        let (.., heard) = asked(Asking::start(config, SCRAM), "", true).await;
        let heard = String::from_utf8_lossy(&heard).into_owned();
        assert!(heard.starts_with("pSCRAM-SHA-256\0"), "{heard}");
        assert!(!heard.contains(PASSWORD), "{heard}");
    }
}

#[tokio::test]
async fn a_guarded_connection_works_as_any_other() {
    let Some(server) = Server::shared() else { return };
    let coded: String = Server::PASSWORD.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let database = server.database();
    let url = server.tcp_url("localhost", &format!("postgres:{coded}"), name(&database));
    for (options, expected) in [
        ("", "nothing"),
        ("?sslmode=disable", "nothing"),
        ("?sslmode=require", "nothing"),
        ("?sslmode=require&channel_binding=require", "nothing"),
        ("?channel_binding=require", "nothing"),
        ("?sslmode=disable&channel_binding=require", "channel binding"),
    ] {
        for is_far in [true, false] {
            let mut address =
                Address::parse(&format!("{url}{options}")).expect("the address is valid");
            if is_far {
                address.guard_passwords();
            }
            let said = match Postgres::connect(address).await {
                Ok(engine) => {
                    engine.migrate_schema().await.expect("the schema is created");
                    let place =
                        engine.open_queue("q", Settings::default()).await.expect("the queue opens");
                    engine.count_keys(&place).await.expect("counted");
                    "nothing".to_owned()
                }
                Err(error) => chain(&error),
            };
            assert!(said.contains(expected), "{options}, {is_far}: {said}");
        }
    }
}

#[tokio::test]
async fn a_certificate_of_another_authority_or_for_another_host_is_not_trusted() {
    let Some(server) = Server::shared() else { return };
    let Some(redis) = requeue_servers::Redis::shared() else { return };
    let coded: String = Server::PASSWORD.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let dir = tempfile::tempdir().expect("a temporary directory");
    let [right, wrong] =
        [("right", server.certificate()), ("wrong", redis.certificate())].map(|(name, from)| {
            let to = dir.path().join(name);
            std::fs::copy(from, &to).expect("the file is copied");
            format!("sslrootcert={}", to.display())
        });
    for (host, options, expected) in [
        ("localhost", right.clone(), "nothing"),
        ("127.0.0.1", right.clone(), "nothing"),
        ("localhost", wrong.clone(), "certificate"),
        ("localhost", format!("{wrong}&sslmode=require"), "certificate"),
        ("localhost", format!("{wrong}&sslmode=verify-ca"), "certificate"),
        ("localhost", format!("{wrong}&sslmode=verify-full"), "certificate"),
        ("127.0.0.1", format!("{right}&sslmode=verify-full"), "certificate"),
        ("127.0.0.1", format!("{right}&sslmode=verify-ca"), "nothing"),
        ("localhost", "sslrootcert=system".to_owned(), "certificate"),
        ("localhost", "sslrootcert=system&sslmode=verify-full".to_owned(), "certificate"),
        // These modes do not verify the server.
        ("127.0.0.1", "sslmode=require".to_owned(), "nothing"),
        ("127.0.0.1", "sslmode=prefer".to_owned(), "nothing"),
        ("127.0.0.1", "sslmode=disable".to_owned(), "nothing"),
    ] {
        let url = server.tcp_url(host, &format!("postgres:{coded}"), "postgres");
        let said = match Store::connect(&format!("{url}?{options}")).await {
            Ok(_) => "nothing".to_owned(),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Tls, "{options}: {}", chain(&error));
                chain(&error)
            }
        };
        assert!(said.contains(expected), "{host} {options}: {said}");
    }
}

#[test]
fn an_authority_beside_an_sslmode_that_ignores_it_is_refused() {
    for (options, expected) in [
        ("sslrootcert=/ca.pem&sslmode=disable", "sslrootcert=FILE needs sslmode=verify-full"),
        ("sslrootcert=/ca.pem&sslmode=prefer", "sslrootcert=FILE needs sslmode=verify-full"),
        ("sslmode=prefer&sslrootcert=/ca.pem", "sslrootcert=FILE needs sslmode=verify-full"),
        ("sslrootcert=/ca.pem&sslmode=allow", "sslmode=allow: expected disable"),
        ("sslrootcert=system&sslmode=disable", "sslrootcert=system needs sslmode="),
        ("sslrootcert=system&sslmode=prefer", "sslrootcert=system needs sslmode="),
        ("sslrootcert=system&sslmode=require", "sslrootcert=system needs sslmode="),
        ("host=%2Frun", "need sslmode=verify-full"),
    ] {
        let error = Address::parse(&format!("postgres://ann@db/d?{options}")).expect_err(options);
        assert!(error.to_string().contains(expected), "{options}: {error}");
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
    for (options, expected) in [
        ("sslrootcert=system", tls::Trust::Name(None)),
        ("sslrootcert=system&sslmode=verify-full", tls::Trust::Name(None)),
        ("sslrootcert=/ca.pem", tls::Trust::Authority(Some("/ca.pem".into()))),
        ("sslrootcert=/ca.pem&sslmode=require", tls::Trust::Authority(Some("/ca.pem".into()))),
        ("sslrootcert=/ca.pem&sslmode=verify-full", tls::Trust::Name(Some("/ca.pem".into()))),
        ("sslmode=require", tls::Trust::Anybody),
        ("", tls::Trust::Anybody),
    ] {
        let address = Address::parse(&format!("postgres://ann@db/d?{options}")).expect(options);
        assert_eq!(address.trust, expected, "{options}");
        assert_eq!(address.negotiation.is_some(), expected == tls::Trust::Anybody, "{options}");
    }
}
