//! TLS: the authorities that the program trusts, and the certificate of `--serve`. Without the feature `tls`, the
//! program refuses the flags for both.

#[cfg(feature = "tls")]
mod certificate;
#[cfg(feature = "tls")]
mod trust;

#[cfg(feature = "tls")]
pub(crate) use self::certificate::ServerTls;
#[cfg(feature = "tls")]
pub(crate) use self::trust::{Connector, hint_for};
#[cfg(all(feature = "opentelemetry", feature = "tls"))]
pub(crate) use self::trust::{trust_file, trust_system};

#[cfg(not(feature = "tls"))]
pub(crate) use self::left_out::{Connector, ServerTls, hint_for};

#[cfg(not(feature = "tls"))]
mod left_out {
    use std::io;
    use std::path::Path;

    use tokio::net::{TcpListener, TcpStream};

    use crate::exit::Refusal;

    fn refuse<T>() -> Result<T, Refusal> {
        let error = "tls: this program was built without it; enable the feature `tls`";
        Err(Refusal::usage(error))
    }

    #[derive(Clone, Debug)]
    pub(crate) enum Connector {}

    impl Connector {
        pub(crate) fn new(_: Option<&Path>) -> Result<Self, Refusal> {
            refuse()
        }

        pub(crate) async fn connect(&self, _: &str, _: TcpStream) -> io::Result<TcpStream> {
            match *self {}
        }
    }

    #[derive(Clone, Debug)]
    pub(crate) enum ServerTls {}

    impl ServerTls {
        pub(crate) fn new(_: &Path, _: &Path) -> Result<Self, Refusal> {
            refuse()
        }

        pub(crate) fn encrypt(self, _: TcpListener) -> TcpListener {
            match self {}
        }
    }

    pub(crate) const fn hint_for(_: &io::Error) -> Option<&'static str> {
        None
    }
}
