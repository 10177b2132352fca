//! Decides which files are watched. The decision depends on the rules of `.gitignore` and `.ignore`, on extensions,
//! and on the files that this program writes.

use std::ffi::{OsStr, OsString};
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use ignore::overrides::OverrideBuilder;
use ignore::{IncrementalIgnore, WalkBuilder};

use crate::args::files::Flags;
use crate::exit::Refusal;
use crate::files::open::{Links, Meta};
use crate::key::escaped;
use crate::output::files::{Identity, identity};

/// Decides which files and directories are watched.
#[derive(Debug)]
pub(super) struct Filter {
    /// The builder of the matcher of each root.
    builders: Vec<WalkBuilder>,
    /// The matcher of each root, with the rules that it has read so far.
    matchers: Vec<IncrementalIgnore>,
    /// The number of directories that the tree has forgotten, and whose rules are still in the matchers.
    pub(super) forgotten: usize,
    /// The extensions, each with its dot.
    extensions: Vec<Vec<u8>>,
    /// The files that this program writes. A change of these files must not start a run.
    own: Vec<Identity>,
    /// The messages about rules that cannot be parsed, until the caller takes them.
    bad_rules: Vec<String>,
    pub(super) links: Links,
}

/// Returns true if a file or directory with this name affects which other files are watched. `.git` marks the root of
/// a repository, in which `.gitignore` applies.
pub(super) fn has_rules(name: &OsStr) -> bool {
    [".gitignore", ".ignore", ".git"].iter().any(|rules| name == *rules)
}

impl Filter {
    /// Returns the filter that the flags describe, for these roots.
    pub(super) fn new(flags: &Flags, roots: &[PathBuf]) -> Result<Self, Refusal> {
        let builders =
            roots.iter().map(|root| walk_builder(flags, root)).collect::<Result<_, _>>()?;
        let extensions = flags.extensions.iter().map(with_dot).collect();
        let (own, bad_rules) = (Vec::new(), Vec::new());
        let links = if flags.follow { Links::Followed } else { Links::Ignored };
        let (matchers, forgotten) = (Vec::new(), 0);
        let mut filter = Self { builders, matchers, forgotten, extensions, own, bad_rules, links };
        filter.reload_rules();
        Ok(filter)
    }

    /// Excludes a file that this program writes.
    pub(super) fn exclude_file(&mut self, file: Option<Metadata>) {
        self.own.extend(file.filter(Metadata::is_file).as_ref().and_then(identity));
    }

    /// Drops all rules. They are read again when they are needed.
    pub(super) fn reload_rules(&mut self) {
        self.forgotten = 0;
        self.matchers = self.builders.iter().flat_map(WalkBuilder::build_matchers).collect();
    }

    /// Returns true if a directory is watched. `path` is relative to the root, as in [`Self::wants_file`].
    pub(super) fn wants_dir(&mut self, root: usize, path: &Path) -> bool {
        path.file_name() != Some(OsStr::new(".git")) && !self.is_ignored(root, path, true)
    }

    /// Returns true if a change of a file starts a run.
    pub(super) fn wants_file(&mut self, root: usize, path: &Path, meta: &Meta) -> bool {
        let name = path.file_name().unwrap_or_default();
        let has_extension =
            // A file whose whole name is `.rs` has no extension.
            |dotted: &Vec<u8>| name.len() > dotted.len() && name.as_bytes().ends_with(dotted);
        name != ".git"
            && (self.extensions.is_empty() || self.extensions.iter().any(has_extension))
            && !self.own.contains(&meta.stamp.id)
            && !self.is_ignored(root, path, false)
    }

    /// Returns the messages about rules that could not be parsed since the last call.
    pub(super) fn take_bad_rules(&mut self) -> Vec<String> {
        std::mem::take(&mut self.bad_rules)
    }

    fn is_ignored(&mut self, root: usize, path: &Path, is_dir: bool) -> bool {
        let (matched, error) = self.matchers[root].matched_with_errors(path, is_dir);
        self.bad_rules.extend(error.map(|error| error.to_string()));
        matched.is_ignore()
    }
}

fn walk_builder(flags: &Flags, root: &Path) -> Result<WalkBuilder, Refusal> {
    let mut globs = OverrideBuilder::new(root);
    for glob in &flags.ignore {
        let wrong =
            |why: &str| Refusal::usage(format!("--ignore {}: {why}", escaped(glob.as_bytes())));
        if glob.starts_with('!') {
            return Err(wrong("it begins with `!`; write `\\!` for a name that begins so"));
        }
        // The glob selects files in `OverrideBuilder`. With a `!` before it, it excludes them.
        globs.add(&format!("!{glob}")).map_err(|error| wrong(&error.to_string()))?;
    }
    let globs = globs.build().map_err(|error| Refusal::usage(format!("--ignore: {error}")))?;
    let mut builder = WalkBuilder::new(root);
    let reads_rules = !flags.no_ignore;
    builder
        .hidden(!flags.hidden)
        .parents(reads_rules)
        .ignore(reads_rules)
        .git_ignore(reads_rules)
        .git_exclude(reads_rules)
        .git_global(reads_rules)
        .follow_links(flags.follow)
        .overrides(globs);
    Ok(builder)
}

/// Returns an extension with exactly one dot before it. The input may be `rs` or `.rs`.
fn with_dot(extension: &OsString) -> Vec<u8> {
    let bytes = extension.as_bytes();
    [b".", bytes.strip_prefix(b".").unwrap_or(bytes)].concat()
}
