//! The pipeline of `examples/file-pipeline`, which is a shell script around `requeue`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;

use crate::support::{Ended, Live, directory, end, until};

/// A directory with Markdown, and the website that the pipeline makes of it.
struct Site {
    dir: PathBuf,
}

impl Site {
    fn new(test: &str) -> Self {
        let site = Self { dir: directory(test) };
        // Because of `.git`, no rules of parent directories apply.
        fs::create_dir_all(site.dir.join("source/.git")).expect("a directory for tests");
        site
    }

    fn command(&self, args: &[&str]) -> Command {
        let script =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/file-pipeline/run.sh");
        let program = Path::new(env!("CARGO_BIN_EXE_requeue")).parent().expect("a directory");
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new("sh");
        command.arg(script).args(args).current_dir(&self.dir).env("LC_ALL", "C");
        command.env("PATH", format!("{}:{path}", program.display()));
        command
    }

    fn start(&self) -> Live {
        Live::spawn(&mut self.command(&["source", "site"]))
    }

    fn write(&self, path: &str, content: &str) {
        let path = self.dir.join(path);
        fs::create_dir_all(path.parent().expect("a directory")).expect("it is made");
        fs::write(path, content).expect("it is written");
    }

    fn remove(&self, path: &str) {
        fs::remove_file(self.dir.join(path)).expect("it was there");
    }

    /// Waits until the page contains this text.
    fn wait_for(&self, page: &str, part: &str) {
        let page = self.dir.join("site").join(page);
        until(|| fs::read_to_string(&page).is_ok_and(|text| text.contains(part)));
    }

    /// Waits until these are the pages in the index.
    fn wait_for_index(&self, pages: &[&str]) {
        let index = self.dir.join("site/index.html");
        until(|| {
            let index = fs::read_to_string(&index).unwrap_or_default();
            index
                .lines()
                .filter_map(|line| line.split('"').nth(1))
                .filter(|it| it.starts_with("./"))
                .eq(pages.iter().copied())
        });
    }

    /// Returns the parked pages with their errors.
    fn parked(&self) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_requeue"));
        command.args(["parked", "--store", "sqlite:site.db", "--queue", "pages"]);
        end(command.current_dir(&self.dir), "").text()
    }
}

fn stop(live: Live) -> Ended {
    live.signal(Signal::TERM);
    let ended = live.end();
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    ended
}

#[test]
fn pages_follow_the_files() {
    let site = Site::new("file_pipeline");
    site.write("source/a.md", "# A & B\n\n- one\n");
    site.write("source/dir/b.md", "# Second\n\ntext\n");
    let live = site.start();
    site.wait_for("a.html", "<title>A &amp; B</title>");
    site.wait_for_index(&["./a.html", "./dir/b.html"]);

    site.write("source/a.md", "# Changed\n");
    site.write("source/c.md", "# Third\n");
    site.remove("source/dir/b.md");
    site.wait_for("index.html", ">Changed<");
    site.wait_for_index(&["./a.html", "./c.html"]);
    assert!(!site.dir.join("site/dir/b.html").exists());
    stop(live);

    // A file that is deleted while nothing runs.
    site.remove("source/c.md");
    let live = site.start();
    site.wait_for_index(&["./a.html"]);
    stop(live);
}

#[test]
fn bad_pages_are_parked_and_other_failures_are_retried() {
    let site = Site::new("file_pipeline_failures");
    site.write("source/good.md", "# Good\n");
    site.write("source/bad.md", "no title\n");
    site.write("source/dir/late.md", "# Late\n");
    // A file is in the place of the directory, for a while.
    site.write("site/dir", "");
    let mut live = site.start();
    live.wait_for_message("\"./dir/late.md\": attempt 1 of 6 failed (exit status: 1), retrying");
    site.remove("site/dir");
    site.wait_for_index(&["./dir/late.html", "./good.html"]);

    until(|| site.parked().contains("exit status: 65"));
    assert!(site.parked().starts_with("./bad.md\t"), "{}", site.parked());
    site.write("source/bad.md", "# No longer bad\n");
    site.wait_for_index(&["./bad.html", "./dir/late.html", "./good.html"]);
    assert_eq!(site.parked(), "");
    let ended = stop(live);
    let said = "./bad.md: the first line is not a title, as in \"# Title\"";
    assert!(ended.stderr.contains(said), "{}", ended.stderr);
}

#[test]
fn bad_arguments_are_named() {
    let site = Site::new("file_pipeline_arguments");
    let ended = end(&mut site.command(&["source"]), "");
    assert_eq!(ended.code(), Some(2));
    assert!(ended.stderr.contains("two directories are needed"), "{}", ended.stderr);
    let ended = end(&mut site.command(&["nowhere", "site"]), "");
    assert_eq!(ended.code(), Some(2));
    assert!(ended.stderr.contains("nowhere: no such directory"), "{}", ended.stderr);
    let ended = end(site.command(&["source", "site"]).env("PATH", "/usr/bin:/bin"), "");
    assert_eq!(ended.code(), Some(2));
    assert!(ended.stderr.contains("requeue is not in PATH"), "{}", ended.stderr);
}
