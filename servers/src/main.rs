//! Starts servers for tests in other languages: `requeue-servers postgres redis`.
//!
//! The program prints a line for each server, with its name and its address. A missing server has no line. The servers
//! stop when the input of the program closes.

use std::io::{self, Read};
use std::thread;

use requeue_servers::{Postgres, Redis};

fn main() -> io::Result<()> {
    // The list of tests that did not run contains the name of this thread.
    let tests = thread::Builder::new().name("tests of another language".to_owned());
    let served = tests.spawn(serve)?.join();
    served.unwrap_or_else(|_| Err(io::Error::other("a server did not start")))
}

fn serve() -> io::Result<()> {
    let (mut postgres, mut redis) = (None, None);
    for name in std::env::args().skip(1) {
        match &*name {
            "postgres" => postgres = Postgres::start(),
            "redis" => redis = Redis::start(),
            _ => return Err(io::Error::other(format!("unknown server: {name}"))),
        }
    }
    if let Some(postgres) = &postgres {
        println!("postgres {}", postgres.database());
    }
    if let Some(redis) = &redis {
        println!("redis {}", redis.url(""));
    }
    println!("started");
    io::stdin().read_to_end(&mut Vec::new()).map(drop)
}
