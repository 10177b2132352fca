//! A proxy that cuts off or delays requests and answers at a point that the test chooses. The
//! contents of the messages, and never the time, determine when a fault happens.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use crate::messages::{Answers, Language, Requests, Sent};

/// Listens on loopback, and forwards to a server on loopback. When it is dropped, all its
/// connections are closed.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
}

/// The point at which a fault affects a request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Point {
    /// Before the server has received any byte of the request.
    Request,
    /// After the server has received the first half of the request.
    HalfRequest,
    /// After the server has answered, and before the client has received any byte of the answer.
    Answer,
    /// After the client has received the first half of the answer.
    HalfAnswer,
}

impl Point {
    /// All points.
    pub const ALL: [Self; 4] = [Self::Request, Self::HalfRequest, Self::Answer, Self::HalfAnswer];

    /// Returns true if the server has processed the request at this point.
    #[must_use]
    pub const fn is_done(self) -> bool {
        matches!(self, Self::Answer | Self::HalfAnswer)
    }
}

/// A fault for one request.
#[derive(Clone, Debug)]
pub struct Mishap(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    asked: Vec<u8>,
    point: Point,
    is_cut: bool,
    stage: Mutex<Stage>,
    changed: Condvar,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Stage {
    /// There was no matching request yet.
    Ahead,
    /// The request was cut off, or is held up.
    Here,
    /// The request may continue.
    Released,
    /// The server has answered the request.
    Answered,
}

#[derive(Debug)]
struct Shared {
    language: Language,
    server: u16,
    ahead: Mutex<Vec<Mishap>>,
    ways: Mutex<Vec<Weak<Way>>>,
    is_closed: AtomicBool,
    is_over: AtomicBool,
}

impl Proxy {
    /// Starts a proxy in front of the server that listens on this port.
    ///
    /// # Panics
    /// Panics if the proxy cannot listen.
    pub fn start(language: Language, server: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0));
        let bound = listener.and_then(|listener| Ok((listener.local_addr()?.port(), listener)));
        let (port, listener) = bound.unwrap_or_else(|err| panic!("a port for a proxy: {err}"));
        let shared = Arc::new(Shared {
            language,
            server,
            ahead: Mutex::default(),
            ways: Mutex::default(),
            is_closed: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
        });
        let serving = Arc::clone(&shared);
        thread::spawn(move || serving.serve(&listener));
        Self { port, shared }
    }

    /// Returns the port on which the proxy listens.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Cuts the connection of the next request that contains `asked`. For PostgreSQL, the SQL of
    /// the request must contain `asked`. A prepared statement counts as a request when it is
    /// executed.
    pub fn cut(&self, asked: &[u8], point: Point) -> Mishap {
        self.befall(asked, point, true)
    }

    /// Holds up the next request that contains `asked` at this point, with all later messages on
    /// its connection, until it is [released](Mishap::release).
    pub fn hold(&self, asked: &[u8], point: Point) -> Mishap {
        self.befall(asked, point, false)
    }

    fn befall(&self, asked: &[u8], point: Point, is_cut: bool) -> Mishap {
        let mishap = Mishap(Arc::new(Inner {
            asked: asked.to_vec(),
            point,
            is_cut,
            stage: Mutex::new(Stage::Ahead),
            changed: Condvar::new(),
        }));
        lock(&self.shared.ahead).push(mishap.clone());
        mishap
    }

    /// Cuts all connections, and refuses new connections.
    pub fn close(&self) {
        self.shared.is_closed.store(true, Ordering::SeqCst);
        self.shared.cut_all();
    }

    /// Accepts connections again.
    pub fn open(&self) {
        self.shared.is_closed.store(false, Ordering::SeqCst);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        self.close();
        // Wakes the accept call with a connection.
        drop(TcpStream::connect(("127.0.0.1", self.port)));
    }
}

impl Mishap {
    /// Waits until the fault has happened.
    ///
    /// # Panics
    /// Panics if there is no matching request within a minute.
    pub fn happened(&self) {
        assert!(self.reaches(Stage::Here), "there was no such request: {self:?}");
    }

    /// Returns true if there was a matching request.
    #[must_use]
    pub fn has_happened(&self) -> bool {
        *lock(&self.0.stage) >= Stage::Here
    }

    /// Lets the request that is held up continue. A matching request that comes later is not held
    /// up.
    pub fn release(&self) {
        self.is_now(Stage::Released);
    }

    /// Waits until the request that was held up has been answered.
    ///
    /// # Panics
    /// Panics if the request is not answered within a minute.
    pub fn answered(&self) {
        assert!(self.reaches(Stage::Answered), "there was no answer: {self:?}");
    }

    fn is_now(&self, stage: Stage) {
        let mut now = lock(&self.0.stage);
        *now = stage.max(*now);
        drop(now);
        self.0.changed.notify_all();
    }

    /// Waits for this stage, for at most a minute. Returns true if the stage is reached.
    fn reaches(&self, stage: Stage) -> bool {
        let now = lock(&self.0.stage);
        let minute = Duration::from_secs(60);
        let waited = self.0.changed.wait_timeout_while(now, minute, |now| *now < stage);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

/// The connection of a client, and the proxy's connection to the server for this client.
struct Way {
    shared: Arc<Shared>,
    client: TcpStream,
    server: TcpStream,
    /// The faults of the requests that have no answer yet, in order.
    asked: Mutex<VecDeque<Option<Mishap>>>,
}

impl Shared {
    fn serve(self: &Arc<Self>, listener: &TcpListener) {
        for client in listener.incoming() {
            if self.is_over.load(Ordering::SeqCst) {
                return;
            }
            // While the proxy is closed or there is no server, the client's connection is dropped.
            if let Ok(client) = client
                && !self.is_closed.load(Ordering::SeqCst)
            {
                let _ = self.connect(client);
            }
        }
    }

    fn connect(self: &Arc<Self>, client: TcpStream) -> io::Result<()> {
        let server = TcpStream::connect(("127.0.0.1", self.server))?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let way =
            Arc::new(Way { shared: Arc::clone(self), client, server, asked: Mutex::default() });
        let mut ways = lock(&self.ways);
        ways.retain(|way| way.strong_count() > 0);
        ways.push(Arc::downgrade(&way));
        drop(ways);
        if self.is_closed.load(Ordering::SeqCst) {
            self.cut_all();
        }
        let back = Arc::clone(&way);
        thread::spawn(move || {
            let _ = way.requests();
            // The server may still answer.
            let _ = way.server.shutdown(Shutdown::Write);
        });
        thread::spawn(move || {
            let _ = back.answers();
            back.cut();
        });
        Ok(())
    }

    fn cut_all(&self) {
        for way in lock(&self.ways).drain(..).filter_map(|way| way.upgrade()) {
            way.cut();
        }
    }

    /// Returns the fault for a request, if any.
    fn mishap(&self, asked: &[u8]) -> Option<Mishap> {
        let mut ahead = lock(&self.ahead);
        let has = |all: &[u8], part: &[u8]| {
            part.is_empty() || all.windows(part.len()).any(|window| window == part)
        };
        let at = ahead.iter().position(|mishap| has(asked, &mishap.0.asked))?;
        Some(ahead.remove(at))
    }
}

impl Way {
    fn requests(&self) -> io::Result<()> {
        let mut requests = Requests::new(self.shared.language);
        let (mut from, mut to) = (&self.client, &self.server);
        let mut bytes = vec![0; 1 << 16];
        loop {
            let read = from.read(&mut bytes)?;
            if read == 0 {
                return Ok(());
            }
            requests.take(&bytes[..read]);
            while let Some(sent) = requests.next() {
                let (request, asked) = match sent {
                    Sent::Request(request, asked) => (request, asked),
                    Sent::Aside(message) => {
                        to.write_all(&message)?;
                        continue;
                    }
                };
                // At the start of a session, the text of a request is empty.
                let mishap = if asked.is_empty() { None } else { self.shared.mishap(&asked) };
                let passes = match &mishap {
                    Some(mishap) if !mishap.0.point.is_done() => {
                        self.befall(mishap, &request, to)?
                    }
                    _ => true,
                };
                if !passes {
                    return Ok(());
                }
                lock(&self.asked).push_back(mishap);
                to.write_all(&request)?;
            }
        }
    }

    fn answers(&self) -> io::Result<()> {
        let mut answers = Answers::new(self.shared.language);
        let (mut from, mut to) = (&self.server, &self.client);
        let (mut bytes, mut held) = (vec![0; 1 << 16], Vec::new());
        loop {
            let read = from.read(&mut bytes)?;
            if read == 0 {
                return Ok(());
            }
            answers.take(&bytes[..read]);
            while let Some((message, is_last)) = answers.next() {
                let mishap = lock(&self.asked).front().cloned().flatten();
                let is_met = mishap.as_ref().is_some_and(|mishap| mishap.0.point.is_done());
                if is_met {
                    held.extend(message);
                } else {
                    // The answer counts even if the client has disconnected.
                    let _ = to.write_all(&message);
                }
                if !is_last {
                    continue;
                }
                lock(&self.asked).pop_front();
                if let Some(mishap) = mishap {
                    if is_met && !self.befall(&mishap, &held, to)? {
                        return Ok(());
                    }
                    mishap.is_now(Stage::Answered);
                    let _ = to.write_all(&held);
                    held.clear();
                }
            }
        }
    }

    /// Applies the fault to a message to `to`. Returns true if the message continues.
    fn befall(&self, mishap: &Mishap, message: &[u8], mut to: &TcpStream) -> io::Result<bool> {
        if mishap.0.is_cut {
            if matches!(mishap.0.point, Point::HalfRequest | Point::HalfAnswer) {
                to.write_all(&message[..message.len() / 2])?;
            }
            self.cut();
            mishap.is_now(Stage::Here);
            return Ok(false);
        }
        mishap.is_now(Stage::Here);
        // The wait is limited, because the test may have ended without a release.
        Ok(mishap.reaches(Stage::Released))
    }

    fn cut(&self) {
        let _ = self.client.shutdown(Shutdown::Both);
        let _ = self.server.shutdown(Shutdown::Both);
    }
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}
