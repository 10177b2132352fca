//! Dashboards with TLS, and `--server https://HOST`.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use requeue_servers::{
    write_certificate, write_certificate_for, write_certificate_of_authority,
    write_expired_certificate,
};
use rustix::process::Signal;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use crate::store::{add, call, requeue};
use crate::support::{Ended, Live, directory, end, until};

const TOKEN: &str = "0123456789abcdef";
const CERTIFICATE: [&str; 4] = ["--tls-cert", "server.crt", "--tls-key", "server.key"];

/// Serves the store in the directory with TLS. Returns the port.
fn serve(dir: &Path) -> (Live, String) {
    let mut command = requeue(dir, "serve", &[&["0", "--serve-admin"], &CERTIFICATE[..]].concat());
    let mut live = Live::spawn(command.env("REQUEUE_TOKEN", TOKEN));
    let line = live.wait_for_message("dashboard: https://127.0.0.1:");
    let port = line.trim_end().trim_end_matches('/').rsplit_once(':').expect("a port").1.to_owned();
    (live, port)
}

/// Returns a client whose system trusts no authority.
fn client(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_requeue"));
    command.args(args).current_dir(dir).env("REQUEUE_TOKEN", TOKEN).env("LC_ALL", "C");
    command.env("SSL_CERT_FILE", "other.crt").env_remove("SSL_CERT_DIR");
    command
}

fn keys(dir: &Path, url: &str, args: &[&str]) -> Ended {
    let queue = ["keys", "--queue", "default", "--server", url];
    end(&mut client(dir, &[&queue, args].concat()), "")
}

/// Writes a certificate to `other.crt`, which no server has.
fn write_other(dir: &Path) {
    write_certificate(dir);
    fs::rename(dir.join("server.crt"), dir.join("other.crt")).expect("it was written");
}

#[test]
fn a_client_verifies_the_certificate_of_a_server() {
    let dir = directory("tls_verifies");
    write_other(&dir);
    write_certificate(&dir);
    add(&dir, &["k"]);
    let (server, port) = serve(&dir);
    let url = format!("https://localhost:{port}");
    let ca = ["--server-ca", "server.crt"];
    let ended = keys(&dir, &url, &ca);
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert!(ended.text().starts_with("k\t"), "{}", ended.text());
    // The token is not readable on the network, so there is no warning.
    let args = ["add", "--queue", "default", "--server", &url, "l"];
    let ended = end(client(&dir, &args).env("SSL_CERT_FILE", "server.crt"), "");
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert!(!ended.stderr.contains("encryption"), "{}", ended.stderr);

    let by_address = format!("https://127.0.0.1:{port}");
    let plain = format!("http://localhost:{port}");
    for (url, args, why) in [
        (&url, &[][..], "pass the certificate of its authority as --server-ca FILE"),
        (&by_address, &ca[..], "use a name of the certificate in the URL"),
        (&url, &["--server-ca", "none.crt"], "--server-ca \"none.crt\": "),
        (&url, &["--server-ca", "server.key"], "the file has no certificate"),
        (&plain, &ca[..], "--server-ca requires --server https://HOST"),
        (&plain, &[][..], "--server \"localhost:"),
    ] {
        let ended = keys(&dir, url, args);
        assert_ne!(ended.code(), Some(0), "{url} {args:?}");
        assert!(ended.stderr.contains(why), "{url} {args:?}: {}", ended.stderr);
    }
    server.signal(Signal::TERM);
    server.end();
}

/// Returns the status line of the answer to a request to the host with this name.
fn ask_as(dir: &Path, name: &'static str, port: &str) -> String {
    let certificate = CertificateDer::from_pem_file(dir.join("server.crt"));
    let mut roots = RootCertStore::empty();
    roots.add(certificate.expect("it was written")).expect("it is a certificate");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.expect("it has versions").with_root_certificates(roots);
    let host = name.try_into().expect("it is a name");
    let mut tls = ClientConnection::new(Arc::new(config.with_no_client_auth()), host)
        .expect("the settings are valid");
    let mut tcp = TcpStream::connect(format!("127.0.0.1:{port}")).expect("the server listens");
    let mut stream = BufReader::new(rustls::Stream::new(&mut tls, &mut tcp));
    write!(stream.get_mut(), "GET /healthz HTTP/1.1\r\nHost: {name}:{port}\r\n\r\n")
        .expect("the certificate fits");
    let mut line = String::new();
    stream.read_line(&mut line).expect("the server answers");
    line
}

#[test]
fn a_server_answers_under_all_names_of_its_certificate() {
    let dir = directory("tls_names");
    add(&dir, &["k"]);
    write_certificate_for(&dir, &["queue.example.org", "*.queues.example.org"]);
    let (server, port) = serve(&dir);
    for name in ["queue.example.org", "mail.queues.example.org"] {
        assert_eq!(ask_as(&dir, name, &port), "HTTP/1.1 200 OK\r\n", "{name}");
    }
    server.signal(Signal::TERM);
    server.end();
}

#[test]
fn a_renewed_certificate_is_used_without_a_restart() {
    let dir = directory("tls_renewed");
    write_certificate(&dir);
    add(&dir, &["k"]);
    let (server, port) = serve(&dir);
    let url = format!("https://localhost:{port}");
    fs::copy(dir.join("server.crt"), dir.join("old.crt")).expect("it was written");
    assert_eq!(keys(&dir, &url, &["--server-ca", "old.crt"]).code(), Some(0));
    write_certificate(&dir);
    until(|| keys(&dir, &url, &["--server-ca", "server.crt"]).code() == Some(0));
    assert_eq!(keys(&dir, &url, &["--server-ca", "old.crt"]).code(), Some(125));
    server.signal(Signal::TERM);
    server.end();
}

#[test]
fn a_certificate_that_no_client_accepts_is_refused_with_the_remedy() {
    let dir = directory("tls_unacceptable");
    add(&dir, &["k"]);
    for (write, why) in [
        (write_expired_certificate as fn(&Path), "renew the certificate of the server"),
        (write_certificate_of_authority, "with basicConstraints=CA:FALSE"),
    ] {
        write(&dir);
        let (server, port) = serve(&dir);
        let url = format!("https://localhost:{port}");
        let ended = keys(&dir, &url, &["--server-ca", "server.crt"]);
        assert_eq!(ended.code(), Some(125), "{}", ended.stderr);
        assert!(ended.stderr.contains(why), "{}", ended.stderr);
        server.signal(Signal::TERM);
        server.end();
    }
}

#[test]
fn a_client_of_a_server_without_tls_learns_so() {
    let dir = directory("tls_plain_server");
    write_other(&dir);
    add(&dir, &["k"]);
    let mut server = Live::spawn(&mut requeue(&dir, "serve", &["0"]));
    let line = server.wait_for_message("dashboard: http://");
    let (_, address) = line.trim_end().split_once("http://").expect("an address");
    let ended = keys(&dir, &format!("https://{address}"), &[]);
    assert_eq!(ended.code(), Some(125), "{}", ended.stderr);
    assert!(ended.stderr.contains("the server may have no TLS: use http://"), "{}", ended.stderr);
    server.signal(Signal::TERM);
    server.end();
}

/// A repetition would not help, so `--wait` ends.
#[test]
fn a_client_without_tls_of_a_server_with_tls_learns_so() {
    let dir = directory("tls_plain_client");
    write_certificate(&dir);
    add(&dir, &["k"]);
    let (server, port) = serve(&dir);
    let url = format!("http://127.0.0.1:{port}");
    for args in [
        &["keys", "--server", &url][..],
        &["work", "--wait", "--server", &url, "--until-empty", "echo"],
    ] {
        let ended = end(&mut client(&dir, args), "");
        assert_eq!(ended.code(), Some(125), "{args:?}: {}", ended.stderr);
        let why = "the server may have TLS: use https://";
        assert!(ended.stderr.contains(why), "{args:?}: {}", ended.stderr);
    }
    server.signal(Signal::TERM);
    server.end();
}

/// Logs must not contain a private key, even if its file is damaged.
#[test]
fn no_part_of_a_key_is_printed() {
    let dir = directory("tls_secret");
    write_certificate(&dir);
    add(&dir, &["k"]);
    let key = fs::read_to_string(dir.join("server.key")).expect("it was written");
    let body = key.lines().nth(1).expect("a line of the key");
    let joined = key.replacen("-----\n", "----- ", 1);
    let encrypted = key.replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY");
    let damaged = key.replace(body, &format!("{body}!"));
    for (file, text) in [
        ("line.pem", key.replace('\n', " ")),
        ("joined.pem", joined),
        ("damaged.pem", damaged),
        ("encrypted.pem", encrypted),
    ] {
        fs::write(dir.join(file), text).expect("the directory is writable");
        let as_certificate = &["0", "--tls-cert", file, "--tls-key", "server.key"];
        let as_key = &["0", "--tls-cert", "server.crt", "--tls-key", file];
        let as_authority = &["--server", "https://localhost:1", "--server-ca", file];
        for (subcommand, args, why) in [
            ("serve", &as_certificate[..], "the file has no certificate; pass one in PEM"),
            ("serve", as_key, "the file has no unencrypted private key in PEM"),
            ("keys", as_authority, "the file has no certificate; pass one in PEM"),
        ] {
            let ended = call(&dir, subcommand, args);
            assert_eq!(ended.code(), Some(2), "{args:?}: {}", ended.stderr);
            assert!(ended.stderr.contains(why), "{args:?}: {}", ended.stderr);
            // Errors may show bytes as text or as numbers.
            let bytes = format!("{:?}", &body.as_bytes()[..8]);
            for part in [&body[..8], bytes.trim_matches(['[', ']'])] {
                assert!(!ended.stderr.contains(part), "{args:?}: {}", ended.stderr);
            }
        }
    }
}

#[test]
fn files_that_are_no_certificate_and_its_key_are_refused() {
    let dir = directory("tls_files");
    write_other(&dir);
    fs::rename(dir.join("server.key"), dir.join("other.key")).expect("it was written");
    write_certificate(&dir);
    add(&dir, &["k"]);
    for (args, why) in [
        (&["0", "--tls-cert", "none", "--tls-key", "server.key"][..], "--tls-cert \"none\": "),
        (&["0", "--tls-cert", "server.crt", "--tls-key", "none"], "--tls-key \"none\": "),
        (
            &["0", "--tls-cert", "server.key", "--tls-key", "server.key"],
            "the file has no certificate",
        ),
        (
            &["0", "--tls-cert", "server.crt", "--tls-key", "server.crt"],
            "--tls-key \"server.crt\": ",
        ),
        (
            &["0", "--tls-cert", "server.crt", "--tls-key", "other.key"],
            "the key does not belong to the certificate of --tls-cert \"server.crt\"",
        ),
        (&["0", "--tls-cert", "server.crt"], "--tls-key"),
        (&[&["unix:s"], &CERTIFICATE[..]].concat()[..], "a Unix socket needs no TLS"),
    ] {
        let ended = call(&dir, "serve", args);
        assert_eq!(ended.code(), Some(2), "{args:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(why), "{args:?}: {}", ended.stderr);
    }
    let ended = call(&dir, "work", &[&CERTIFICATE[..], &["echo"]].concat());
    assert_eq!(ended.code(), Some(2), "{}", ended.stderr);
    assert!(ended.stderr.contains("--tls-cert requires --serve"), "{}", ended.stderr);
}
