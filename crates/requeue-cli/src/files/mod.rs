//! `requeue files`: runs a command for each file that changes.

mod content;
mod events;
mod filter;
mod hooks;
mod open;
mod ran;
mod tree;

use std::borrow::Cow;
use std::fs;
use std::hash::RandomState;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use notify::NullWatcher;
use requeue::ReaddPolicy;
use tokio::sync::oneshot;

use crate::args::config::{Config, Subcommand};
use crate::args::files::Flags;
use crate::args::values::Retries;
use crate::duration::Debounce;
use crate::exit::{Ended, Refusal};
use crate::files::events::{Events, Inbox, NewWatcher, NotWatched, system_watcher};
use crate::files::filter::Filter;
use crate::files::hooks::{ALL, FileHooks, Paths};
use crate::files::ran::Ran;
use crate::files::tree::{Change, Full, Kind, Root, Tree};
use crate::input::{self, AddOptions};
use crate::key::escaped;
use crate::output::summary::counted;
use crate::process::signals::Level;
use crate::runner::launch::{self, Parts};
use crate::runner::{Files, Runner};
use crate::serve::Listener;

/// The default debounce of a file. An editor writes a file several times when it saves it, in a shorter time than the
/// quiet time.
const DEBOUNCE: Debounce =
    Debounce { quiet: Duration::from_millis(50), most: Duration::from_millis(500) };

/// The minimum time for which events are collected, so that several events for a file are handled together.
const COLLECT: Duration = Duration::from_millis(5);

/// The interval at which a removed root is searched.
const MISSING: Duration = Duration::from_secs(1);

/// Runs `requeue files`.
pub(crate) fn run(mut flags: Flags) -> Result<Ended, Refusal> {
    // The time is read before the first file. A file that changes during the scan is then treated as changed.
    let since = SystemTime::now();
    let roots = find_roots(std::mem::take(&mut flags.dirs))?;
    let paths: Vec<_> = roots.iter().map(|root| root.path.clone()).collect();
    let mut filter = Filter::new(&flags, &paths)?;
    let all = flags.all_in_one.then(|| Paths::new(if flags.null { b'\0' } else { b'\n' }));
    // The tree and the hooks compare each other's hashes, so both use the same secret.
    let secret = RandomState::new();
    let given = roots.iter().map(|root| root.given.clone()).collect();
    let ran = Ran::new(secret.clone(), filter.links, given);
    let inbox = Arc::new(Inbox::default());
    let runs_deleted = flags.deleted;
    let clear = (flags.clear && io::stdout().is_terminal()).then(AtomicBool::default);
    let hooks = Arc::new(FileHooks { all, ran, inbox: Arc::clone(&inbox), runs_deleted, clear });
    let (poll, is_initial) = (flags.poll.filter(|time| !time.is_zero()), flags.initial);
    let config = run_config(flags)?;
    let files = Files::open_files(&config, None)?;
    // The files that this program writes are open at this point, so they have an identity by which they can be
    // excluded.
    exclude_own(&mut filter, &config);

    let events = Arc::clone(&inbox);
    let new_watcher: NewWatcher = match poll {
        // With `--poll`, the whole tree is read at each interval, so no watcher of the system is needed.
        Some(_) => Box::new(|| Ok(Box::new(NullWatcher))),
        None => Box::new(move || system_watcher(&events)),
    };
    let mut tree = Tree::new(roots, filter, new_watcher, secret).map_err(no_watch)?;
    let changes = tree.first_scan(since).map_err(|full| Refusal::failure(too_many(&full)))?;
    let changes = match is_initial {
        true => {
            let kind = || Kind::Changed { before: None };
            tree.files().into_iter().map(|path| Change { path, kind: kind() }).collect()
        }
        false => changes,
    };
    launch::block_on(async {
        let listener = Listener::bind_if_asked(config.serve.as_ref()).await?;
        let parts = Parts {
            hooks: Some(Arc::clone(&hooks) as Arc<dyn crate::runner::hooks::Hooks>),
            ..Parts::new(config, files, listener)
        };
        launch::run_parts(parts, |runner| {
            let follower = Follower { runner: Arc::clone(runner), hooks, tree, inbox, poll };
            thread::Builder::new()
                .name("files".to_owned())
                .spawn(move || follower.follow_changes(changes))
                .map_err(|error| Refusal::failure(error.to_string()))?;
            // `requeue files` reads no input, so the sender is dropped, and the receiver is ready immediately.
            Ok(oneshot::channel().1)
        })
        .await
    })
}

fn find_roots(dirs: Vec<PathBuf>) -> Result<Vec<Root>, Refusal> {
    let root = |dir: PathBuf| {
        let name = escaped(dir.as_os_str().as_bytes());
        Root::find(dir).map_err(|error| match error.kind() {
            io::ErrorKind::NotADirectory => Refusal::usage(format!(
                "{name}: not a directory; name its directory, and select files with -e or --ignore"
            )),
            io::ErrorKind::NotFound => Refusal::usage(format!(
                "{name}: no such directory; create it first, or correct the name (the command follows `--`)"
            )),
            _ => Refusal::failure(format!("{name}: {error}")),
        })
    };
    dirs.into_iter().map(root).collect()
}

/// Returns the configuration. Flags that are missing get the defaults for files.
fn run_config(flags: Flags) -> Result<Config, Refusal> {
    let Flags { mut common, mut alone, all_in_one, .. } = flags;
    // By default, a failed run is not retried, because the unchanged files would probably make it fail again.
    common.retries.get_or_insert(Retries(Some(0)));
    alone.debounce.get_or_insert(DEBOUNCE);
    common.re_add.get_or_insert(ReaddPolicy::Replace);
    let own = Subcommand {
        is_keyless: all_in_one,
        first_interrupt: Level::Terminating,
        ..Subcommand::without_input("files")
    };
    Config::from_flags(common, alone, own)
}

/// Excludes the files that this program writes. Otherwise, each run would change a file and thus start another run.
fn exclude_own(filter: &mut Filter, config: &Config) {
    for path in [&config.dead_letter, &config.joblog].into_iter().flatten() {
        filter.exclude_file(fs::metadata(path).ok());
    }
    for stream in [io::stdout().as_fd(), io::stderr().as_fd()] {
        let file = stream.try_clone_to_owned().map(fs::File::from);
        filter.exclude_file(file.and_then(|file| file.metadata()).ok());
    }
}

fn no_watch(why: NotWatched) -> Refusal {
    let why = match why {
        NotWatched::Full => return Refusal::failure(too_many(&Full(0))),
        NotWatched::Failed(error) => error,
    };
    Refusal::failure(format!(
        "changes cannot be watched: {why}; if too many programs watch files, raise \
         fs.inotify.max_user_instances, or use --poll 2s"
    ))
}

fn too_many(Full(directories): &Full) -> String {
    format!(
        "the system watches no more directories than {}; raise the limit with `sysctl \
         fs.inotify.max_user_watches=524288`, ignore directories with --ignore, or use --poll 2s",
        in_words(*directories)
    )
}

fn in_words(directories: usize) -> String {
    match directories {
        1 => "1 directory".to_owned(),
        _ => format!("{directories} directories"),
    }
}

/// Adds the files that change to the queue.
struct Follower {
    runner: Arc<Runner>,
    hooks: Arc<FileHooks>,
    tree: Tree,
    inbox: Arc<Inbox>,
    poll: Option<Duration>,
}

impl Follower {
    /// Adds `changes`, and then each later change, until the program stops.
    fn follow_changes(mut self, changes: Vec<Change>) {
        let (files, directories) = self.tree.size();
        let (files, directories) = (counted(files as u64, "file"), in_words(directories));
        self.report_warnings();
        self.say(&format!("watching {files} in {directories}"));
        self.add_changes(changes);
        let (mut overflowed, mut pause) = (false, COLLECT);
        while !self.runner.is_stopping() {
            let at_most = self.poll.or_else(|| self.tree.has_missing().then_some(MISSING));
            self.inbox.wait_for_events(at_most);
            // More events may arrive during the sleep. All of them are handled together.
            thread::sleep(pause);
            let start = Instant::now();
            let events = self.inbox.take_events();
            if events.overflow && !overflowed {
                overflowed = true;
                self.say("events were lost: files change faster than they are read; all files are read again");
            }
            let changes = self.find_changes(events);
            self.report_warnings();
            match changes {
                Ok(changes) => self.add_changes(changes),
                Err(full) => {
                    self.say(&too_many(&full));
                    self.runner.tally.mark_failed();
                    self.runner.stop(Level::Stopping);
                }
            }
            // The sleep is as long as the handling of the events. At least half of a processor's time is then left for
            // the commands.
            pause = start.elapsed().clamp(COLLECT, Duration::from_secs(1));
        }
    }

    fn find_changes(&mut self, events: Events) -> Result<Vec<Change>, Full> {
        if self.poll.is_some() {
            for path in events.skipped {
                self.tree.forget_file(&path);
            }
            return self.tree.scan();
        }
        let mut changes = self.tree.handle_events(events)?;
        changes.extend(self.tree.find_missing()?);
        Ok(changes)
    }

    fn add_changes(&self, changes: Vec<Change>) {
        if let Some(clear) = &self.hooks.clear
            && self.runner.is_idle()
        {
            // No key is ready or in flight, so the next run clears the output of the earlier runs.
            clear.store(true, Ordering::Relaxed);
        }
        for Change { path, kind } in changes {
            let path = path.as_os_str().as_bytes();
            let reason = match kind {
                Kind::Changed { .. } => "file changed",
                Kind::Deleted => "file deleted",
            };
            match kind {
                Kind::Changed { before } => self.hooks.ran.record_change(path, before),
                Kind::Deleted => {
                    self.hooks.ran.forget_file(path);
                    if !self.hooks.runs_deleted {
                        continue;
                    }
                }
            }
            let key = match &self.hooks.all {
                None => path,
                Some(paths) if paths.add_path(path) => ALL,
                Some(_) => {
                    let path = escaped(path);
                    let why = "the path contains a newline, so it looks like two; use -0";
                    self.say(&format!("{path}: left out: {why}"));
                    continue;
                }
            };
            let reason = Some(requeue::intern_reason(reason));
            let options = AddOptions { reason, ..AddOptions::default() };
            let add = input::Change::Add(Cow::Borrowed(key), options);
            self.runner.take_change(add, &mut 0);
        }
    }

    fn report_warnings(&mut self) {
        for warning in self.tree.take_warnings() {
            self.say(&warning);
        }
    }

    fn say(&self, message: &str) {
        self.runner.output.say_blocking(message);
    }
}
