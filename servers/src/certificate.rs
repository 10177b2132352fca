//! Certificates of servers.

use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair, date_time_ymd};

use crate::keeper::write;

/// Writes a certificate for `localhost` to `server.crt` in `dir`, and its key to `server.key`. It verifies itself.
pub fn write_certificate(dir: &Path) {
    write_signed(dir, &localhost());
}

/// Writes a certificate for these names, and its key.
pub fn write_certificate_for(dir: &Path, names: &[&str]) {
    write_signed(dir, &params_for(names));
}

/// Writes a certificate that has expired, and its key.
pub fn write_expired_certificate(dir: &Path) {
    let mut params = localhost();
    (params.not_before, params.not_after) = (date_time_ymd(2000, 1, 1), date_time_ymd(2001, 1, 1));
    write_signed(dir, &params);
}

/// Writes a certificate of an authority, and its key. `openssl req -x509` makes such certificates.
pub fn write_certificate_of_authority(dir: &Path) {
    let mut params = localhost();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    write_signed(dir, &params);
}

fn localhost() -> CertificateParams {
    params_for(&["localhost"])
}

fn params_for(names: &[&str]) -> CertificateParams {
    let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
    CertificateParams::new(names).unwrap_or_else(|err| panic!("a name: {err}"))
}

fn write_signed(dir: &Path, params: &CertificateParams) {
    let key = KeyPair::generate().unwrap_or_else(|err| panic!("a key: {err}"));
    let certificate = params.self_signed(&key);
    let certificate = certificate.unwrap_or_else(|err| panic!("a certificate: {err}"));
    write(&dir.join("server.crt"), &certificate.pem());
    write(&dir.join("server.key"), &key.serialize_pem());
}
