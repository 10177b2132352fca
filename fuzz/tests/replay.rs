//! Runs each target on its corpus, and on inputs that are derived from it.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::{fs, io};

use fastrand::Rng;

const LONGEST: usize = 4_096;

fn replay(name: &str, target: fn(&[u8]), number: usize) {
    let corpus = corpus(name).expect("a corpus");
    for (file, input) in &corpus {
        attempt(target, input, &file.display().to_string());
    }
    let mut random = Rng::with_seed(1);
    for number in 0..number {
        attempt(target, &made(&corpus, &mut random), &format!("number {number} of those made"));
    }
}

fn corpus(name: &str) -> io::Result<BTreeMap<PathBuf, Vec<u8>>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    let files = fs::read_dir(folder)?.map(|file| {
        let path = file?.path();
        fs::read(&path).map(|input| (path, input))
    });
    files.collect()
}

fn attempt(target: fn(&[u8]), input: &[u8], what: &str) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| target(input))) {
        eprintln!("{what}: {}", input.escape_ascii());
        resume_unwind(panic);
    }
}

/// Combines the start of an input with the end of an input, and changes a few bytes, or returns
/// random bytes.
fn made(corpus: &BTreeMap<PathBuf, Vec<u8>>, random: &mut Rng) -> Vec<u8> {
    if random.u8(..4) == 0 {
        return (0..random.usize(..64)).map(|_| random.u8(..)).collect();
    }
    let mut any = || random.choice(corpus.values()).expect("a corpus is not empty");
    let (one, other) = (any(), any());
    let [start, end] = [one, other].map(|input| random.usize(..=input.len()));
    let mut made =
        if random.bool() { one.clone() } else { [&one[..start], &other[end..]].concat() };
    for _ in 0..random.usize(..6) {
        let at = random.usize(..=made.len());
        match random.u8(..3) {
            0 => made.insert(at, random.u8(..)),
            1 if at < made.len() => _ = made.remove(at),
            _ if at < made.len() => made[at] = random.u8(..),
            _ => {}
        }
    }
    made.truncate(LONGEST);
    made
}

macro_rules! replayed {
    ($($target:ident: $number:expr;)*) => {$(
        #[test]
        fn $target() {
            replay(stringify!($target), requeue_fuzz::$target, $number);
        }
    )*};
}

// The numbers of derived inputs are chosen so that each target takes a few seconds at most.
replayed! {
    operations: 5_000;
    recording: 20_000;
    input: 10_000;
    values: 50_000;
    template: 20_000;
    http: 5_000;
    rows: 50_000;
}
