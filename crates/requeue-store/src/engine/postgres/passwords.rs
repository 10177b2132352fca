//! Finds a password that the address does not contain: in `PGPASSWORD`, or in a file in the format of `libpq`.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use tokio_postgres::Config;
use tokio_postgres::config::Host;

pub(super) fn find_password(config: &Config, passfile: Option<&Path>) -> Option<String> {
    if passfile.is_none()
        && let Some(password) = env::var("PGPASSWORD").ok().filter(|given| !given.is_empty())
    {
        return Some(password);
    }
    let file = passfile
        .map(Path::to_owned)
        .or_else(|| env::var_os("PGPASSFILE").map(PathBuf::from))
        .or_else(|| env::home_dir().map(|home| home.join(".pgpass")))?;
    let text = read_private(&file)?;
    let host = match config.get_hosts().first() {
        Some(Host::Tcp(host)) => host.clone(),
        _ => "localhost".to_owned(),
    };
    let port = config.get_ports().first().unwrap_or(&5432).to_string();
    let user =
        config.get_user().map_or_else(|| env::var("USER").unwrap_or_default(), str::to_owned);
    let database = config.get_dbname().unwrap_or(&user);
    look_up(&text, [&host, &port, database, &user])
}

/// Reads the file. Returns `None` if other users can access it.
fn read_private(file: &Path) -> Option<String> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;

        // Such a file is ignored, as in libpq, because another user could have written the password.
        if fs::metadata(file).ok()?.permissions().mode() & 0o077 != 0 {
            tracing::warn!(file = %file.display(), "the password file is ignored, because \
                other users can access it; change its mode to 0600");
            return None;
        }
    }
    fs::read_to_string(file).ok()
}

/// Returns the password from the first line that matches this host, port, database and user.
fn look_up(text: &str, wanted: [&str; 4]) -> Option<String> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(split_fields).find_map(|fields| {
        let (password, found) = fields.split_last()?;
        let fits = found.len() == wanted.len()
            && found.iter().zip(wanted).all(|(found, wanted)| found == "*" || found == wanted);
        fits.then(|| password.clone())
    })
}

/// Splits a line at its colons. In a field, `\:` is a colon and `\\` is a backslash.
fn split_fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match c {
            // Everything after the fourth colon is the password.
            ':' if fields.len() < 5 => fields.push(String::new()),
            '\\' => fields.last_mut().into_iter().for_each(|field| field.extend(chars.next())),
            c => fields.last_mut().into_iter().for_each(|field| field.push(c)),
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_that_fits_has_the_password() {
        let text = "# host:port:database:user:password\n\
                    db:5432:shop:ann:one\n\
                    db:*:*:a\\:b:two\\:\\\\:2\n\
                    *:*:*:ann:three\n\
                    short:line\n";
        let find = |host, port, database, user| look_up(text, [host, port, database, user]);
        assert_eq!(find("db", "5432", "shop", "ann").as_deref(), Some("one"));
        assert_eq!(find("db", "5433", "shop", "ann").as_deref(), Some("three"));
        assert_eq!(find("db", "1", "x", "a:b").as_deref(), Some("two:\\:2"));
        assert_eq!(find("db", "5432", "shop", "bob"), None);
    }

    #[cfg(unix)]
    #[test]
    fn a_file_that_others_may_read_has_none() {
        use std::os::unix::fs::PermissionsExt;

        let dir = tempfile::tempdir().expect("the temporary directory is created");
        let file = dir.path().join("pgpass");
        fs::write(&file, "*:*:*:*:secret").expect("the file is written");
        let allow = |mode| fs::set_permissions(&file, fs::Permissions::from_mode(mode));
        allow(0o640).expect("the mode is changed");
        assert_eq!(read_private(&file), None);
        allow(0o600).expect("the mode is changed");
        assert_eq!(read_private(&file).as_deref(), Some("*:*:*:*:secret"));
    }
}
