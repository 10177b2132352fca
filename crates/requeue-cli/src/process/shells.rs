//! Refuses commands in which a key would be run as code. Keys are untrusted: file names and IDs come from others.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use crate::exit::Refusal;
use crate::process::mark::Marks;

/// Shells that take a script as the argument after `-c`, and arguments of the script after it.
const SHELLS: &str =
    "sh ash bash brush dash hush ksh lksh loksh mksh oksh osh pdksh posh rbash rksh yash zsh";
/// Shells of other languages, which also take a script after `-c`, and the letters of their other options that take
/// code.
const OTHER_SHELLS: [(&str, &str); 3] =
    [("fish", "C"), ("nu", "e"), ("csh elvish es ion rc tcsh xonsh ysh", "")];
/// Programs that have a shell run the value of `-c`, wherever it stands among their arguments.
const BY_SHELL: &str = "capsh newgrp runuser script sg su";
/// Shells that run all words after `-c` or `-Command`.
const POWERSHELLS: &str = "powershell pwsh";
/// Interpreters, and the letters and names of the options that take code.
const INTERPRETERS: [(&str, &str, &[&str]); 12] = [
    ("bun mongosh node nodejs ts-node tsx", "ep", &["--eval", "--print"]),
    ("deno", "", &["eval"]),
    ("elixir ghc groovy lua luajit raku Rscript swipl", "e", &["--eval"]),
    ("erl", "", &["-eval"]),
    ("octave sbcl", "", &["--eval"]),
    ("expect guile ipython pypy python tclsh", "c", &[]),
    ("gnuplot R", "e", &[]),
    ("julia", "eE", &["--eval", "--print"]),
    ("osascript scala", "e", &[]),
    ("perl", "eE", &[]),
    ("php", "rBRE", &["--run"]),
    ("ruby", "e", &[]),
];
/// Interpreters whose options that take code may follow operands.
const CODE_ANYWHERE: &str = "emacs ex gdb mariadb mysql nvim psql vi view vim";
/// Interpreters whose first operand is code, unless the code is in an option.
const CODE_FIRST: &str = "awk gawk mawk nawk sed";
/// Programs that join their arguments and have a shell run them, on another host or here.
const JOINING: &str =
    "autossh clush dbclient env_parallel hyperfine mosh parallel pdsh rsh sem ssh tmux watch";

/// Returns true if `name` is one of these words.
fn is_in(names: &str, name: &[u8]) -> bool {
    names.split(' ').any(|other| other.as_bytes() == name)
}

/// Refuses a command in which a shell would run the key as code: the key is the script, or a part of the script, of
/// `sh -c`, `su -c`, `env -S` and similar programs. These may follow `env`, `timeout`, `sudo` or any other program that
/// runs its arguments.
///
/// Returns a warning for interpreters and `ssh`. Such a command can be safe, for example if keys are numbers.
pub(crate) fn refuse_code_from_keys(
    words: &[OsString],
    marks: Marks<'_>,
) -> Result<Option<String>, Refusal> {
    let has_mark = |word: &OsString| marks.is_in(word);
    // Without a placeholder, the key is the last argument.
    let appended = !words.iter().any(has_mark);
    // The key is in the option at `at`, or in its value, which is the next word.
    let is_code = |args: &[OsString], at: usize| {
        let code = &args[at..args.len().min(at + 2)];
        code.iter().any(has_mark) || (appended && code.len() == 1)
    };
    let is_in_option = |args: &[OsString], letters, options| {
        (0..args.len()).any(|at| takes_code(&args[at], letters, options) && is_code(args, at))
    };
    let mut warning = None;
    for (at, word) in words.iter().enumerate() {
        let (name, args) = (program(word), &words[at + 1..]);
        let shown = String::from_utf8_lossy(name);
        let refusal = || refusal(marks, Some(&shown));
        let other = OTHER_SHELLS.iter().find(|(names, _)| is_in(names, name));
        if is_in(SHELLS, name) || other.is_some() {
            if other.is_some_and(|(_, letters)| is_in_option(args, letters, &["--execute"])) {
                return Err(refusal());
            }
            match script(args, marks) {
                Script::Is(script) => refuse_mark_in_script(script, marks, Some(&shown))?,
                Script::Missing if appended => return Err(refusal()),
                Script::Missing | Script::None => {}
            }
        } else if is_in(BY_SHELL, name) {
            if is_in_option(args, "c", &["--command", "--session-command"]) {
                return Err(refusal());
            }
        } else if name == b"flock" {
            // The option of flock follows the file. Any later option belongs to a command.
            let option = args.iter().position(|arg| takes_code(arg, "c", &["--command"]));
            let is_operand =
                |arg: &&OsString| !matches!(arg.as_bytes(), [b'-', ..] | [b'0'..=b'9', ..]);
            let is_own = |at: &usize| args[..*at].iter().filter(is_operand).count() <= 1;
            if option.filter(is_own).is_some_and(|at| is_code(args, at)) {
                return Err(refusal());
            }
        } else if is_in(POWERSHELLS, name) {
            let is_command = |arg: &OsString| {
                let option = arg.as_bytes().to_ascii_lowercase();
                option.starts_with(b"-c")
                    || b"-encodedcommand".starts_with(&option) && option.len() > 1
                    || option == b"-ec"
            };
            let command = args.iter().position(is_command);
            if command.is_some_and(|at| appended || args[at..].iter().any(has_mark)) {
                return Err(refusal());
            }
        } else if name == b"env" {
            if split_string(args)
                .is_some_and(|string| appended && string.is_empty() || string.iter().any(has_mark))
            {
                return Err(refusal());
            }
        } else if is_in(JOINING, name) {
            if appended || args.iter().any(has_mark) {
                warning.get_or_insert_with(|| joins(&shown));
            }
        } else if is_interpreted(name, args, &has_mark, appended)
            || is_in(CODE_ANYWHERE, name)
                && is_in_option(
                    args,
                    "c",
                    &["--cmd", "--command", "--eval", "--eval-command", "--execute", "-e", "-ex"],
                )
        {
            warning.get_or_insert_with(|| interprets(&shown));
        }
    }
    Ok(warning)
}

/// Returns the name of a program without its directory and version: `python` for `/usr/bin/python3.12`.
fn program(word: &OsStr) -> &[u8] {
    let name = word.as_bytes().rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    let is_version = |byte: &u8| byte.is_ascii_digit() || matches!(byte, b'.' | b'-');
    let end = name.iter().rposition(|byte| !is_version(byte)).map_or(0, |last| last + 1);
    &name[..end]
}

/// Returns true if an option takes code, as the next word or as the rest of this one. Long options
/// may be abbreviated.
fn takes_code(arg: &OsStr, letters: &str, names: &[&str]) -> bool {
    let arg = arg.as_bytes();
    let name = arg.split(|&byte| byte == b'=').next().unwrap_or_default();
    if names.iter().any(|other| other.as_bytes() == name) {
        return true;
    }
    match arg {
        [b'-', b'-', _, ..] => names.iter().any(|other| other.as_bytes().starts_with(name)),
        [b'-', b'-'] => false,
        [b'-', cluster @ ..] => cluster.iter().any(|byte| letters.as_bytes().contains(byte)),
        _ => false,
    }
}

/// Returns true if a key is code for the interpreter called `name`.
fn is_interpreted(
    name: &[u8],
    args: &[OsString],
    has_mark: &impl Fn(&OsString) -> bool,
    appended: bool,
) -> bool {
    let (letters, names, code_first) =
        match INTERPRETERS.iter().find(|(others, ..)| is_in(others, name)) {
            Some(&(_, letters, names)) => (letters, names, false),
            None if is_in(CODE_FIRST, name) => ("e", &["--source", "--expression"][..], true),
            None => return false,
        };
    let (mut at, mut is_given) = (0, false);
    while let Some(arg) = args.get(at) {
        at += 1;
        if takes_code(arg, letters, names) {
            is_given = true;
            if has_mark(arg) || args.get(at).map_or(appended, has_mark) {
                return true;
            }
            at += 1;
        } else if !arg.as_bytes().starts_with(b"-") {
            return code_first && !is_given && has_mark(arg);
        } else if code_first {
            match arg.as_bytes() {
                b"-F" | b"-v" => at += 1,
                [b'-', b'f', ..] | [b'-', b'-', b'f', b'i', b'l', b'e', ..] => is_given = true,
                _ => {}
            }
        }
    }
    code_first && !is_given && appended
}

/// Returns the value of `env -S`, which env splits into words. Empty if the value is missing.
fn split_string(args: &[OsString]) -> Option<&[OsString]> {
    let mut at = 0;
    while let Some(arg) = args.get(at) {
        match arg.as_bytes() {
            [b'-', b'-', ..] if takes_code(arg, "", &["--split-string"]) => {
                let is_attached = arg.as_bytes().contains(&b'=');
                let at = at + usize::from(!is_attached);
                return Some(&args[at..args.len().min(at + 1)]);
            }
            b"-u" | b"-C" => at += 1,
            [b'-', cluster @ ..] if cluster.ends_with(b"S") => {
                return Some(&args[at + 1..args.len().min(at + 2)]);
            }
            [b'-', cluster @ ..] if cluster.contains(&b'S') => return Some(&args[at..=at]),
            [b'-', ..] => {}
            word if word.contains(&b'=') => {}
            _ => return None,
        }
        at += 1;
    }
    None
}

/// Refuses a script that contains the placeholder.
pub(crate) fn refuse_mark_in_script(
    script: &OsStr,
    marks: Marks<'_>,
    shell: Option<&str>,
) -> Result<(), Refusal> {
    if marks.is_in(script) { Err(refusal(marks, shell)) } else { Ok(()) }
}

fn refusal(marks: Marks<'_>, shell: Option<&str>) -> Refusal {
    let mark = marks.shown();
    let direct = match shell {
        None => String::new(),
        Some("env") => format!("\n  -- env A=b cmd {mark}"),
        Some("flock") => format!("\n  -- flock FILE cmd {mark}"),
        Some("capsh") => format!("\n  -- capsh -- -c 'cmd \"$1\"' _ {mark}"),
        Some(su @ ("runuser" | "su")) => format!("\n  -- {su} -c 'cmd \"$1\"' -- USER _ {mark}"),
        Some("newgrp" | "script" | "sg") => String::new(),
        Some(shell) if is_in(SHELLS, shell.as_bytes()) => {
            format!("\n  -- {shell} -c 'cmd \"$1\"' _ {mark}")
        }
        Some(shell) => format!("\n  -- {shell} FILE {mark}"),
    };
    Refusal::usage(format!(
        "a key inside a script would be run as code. Pass it as an argument:{direct}
  -c 'cmd \"$1\"'
or let the script read the variable REQUEUE_KEY.
If {mark} is not meant for the key, choose another placeholder with -I."
    ))
}

fn interprets(name: &str) -> String {
    format!(
        "a key inside the code of {name} is run as code. If keys are untrusted, pass the key as an \
         argument of its own, or let the code read the variable REQUEUE_KEY"
    )
}

fn joins(name: &str) -> String {
    format!(
        "{name} joins its arguments and runs them by a shell, so a key is run as code. If keys are \
         untrusted, use `--stdin key`, and let the command read the key from its standard input"
    )
}

enum Script<'a> {
    /// `-c` and the script.
    Is(&'a OsStr),
    /// `-c` as the last argument.
    Missing,
    /// No `-c`.
    None,
}

/// Finds the script among the arguments of a shell.
fn script<'a>(args: &'a [OsString], marks: Marks<'_>) -> Script<'a> {
    let (mut is_script, mut at) = (false, 0);
    while let Some(arg) = args.get(at) {
        at += 1;
        match arg.as_bytes() {
            b"--" | b"-" => break,
            b"--rcfile" | b"--init-file" => at += 1,
            [b'-', b'-', ..]
                if takes_code(arg, "", &["--command", "--commands", "--init-command"]) =>
            {
                if arg.as_bytes().contains(&b'=') {
                    return Script::Is(arg);
                }
                is_script = true;
                break;
            }
            [b'-', b'-', ..] => {}
            // fish accepts `-cSCRIPT`.
            [b'-', letters @ ..] if letters.contains(&b'c') && marks.find(letters).is_some() => {
                return Script::Is(arg);
            }
            [sign @ (b'-' | b'+'), letters @ ..] => {
                is_script |= *sign == b'-' && letters.contains(&b'c');
                // In `-o pipefail`, the name of the option is the next word.
                at += letters.iter().filter(|letter| matches!(letter, b'o' | b'O')).count();
            }
            _ => {
                at -= 1;
                break;
            }
        }
    }
    match args.get(at) {
        _ if !is_script => Script::None,
        Some(script) => Script::Is(script),
        None => Script::Missing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the warning about a command; `Err` if it is refused.
    fn said(words: &str) -> Result<Option<String>, String> {
        let words: Vec<_> = words.split('|').map(OsString::from).collect();
        refuse_code_from_keys(&words, Marks::Braces).map_err(|refusal| refusal.message)
    }

    fn refused(words: &str) -> bool {
        said(words).is_err()
    }

    #[test]
    fn a_mark_inside_a_script_is_refused_wherever_the_shell_stands() {
        for words in [
            "sh|-c|echo {}",
            "/bin/bash|-c|{}",
            "dash|-ec|echo {}|_",
            "bash|-o|pipefail|-c|echo {}",
            "bash|-euo|pipefail|-c|echo {}",
            "bash|--norc|--rcfile|f|-c|echo {}",
            "sh|-c|--|echo {}",
            "env|A=b|zsh|-c|echo {}",
            "ssh|host|ksh|-c|echo {}",
            "sh|-c",
            "fish|-c|echo {}",
            "fish|-cecho {}",
            "fish|--command=echo {}",
            "fish|--command|echo {}",
            "/usr/local/bin/ksh93|-c|echo {}",
            "busybox|ash|-c|echo {}",
            "tcsh|-fc|echo {}",
            "nu|--commands|echo {}",
            "sudo|-u|me|timeout|9|nice|mksh|-c|echo {}",
            "xargs|-0|yash|-c|echo {}",
            "su|-c|echo {}",
            "su|-|me|-c|echo {}",
            "su|me|--command=echo {}",
            "su|me|-c",
            "sudo|runuser|-u|me|-c|echo {}",
            "env|-S|echo {}",
            "env|A=b|-u|C|--split-string=echo {}",
            "env|-vSecho {}",
            "env|-S",
            "pwsh|-NoProfile|-Command|echo|{}",
            "pwsh|-c|echo",
            "pwsh|-EncodedCommand|{}",
            "pwsh|-e",
            "flock|file|-c|echo {}",
            "flock|-x|-w|9|file|--comm|echo {}",
            "flock|file|-c",
            "script|-qec|echo {}|/dev/null",
            "script|/dev/null|--command=echo {}",
            "capsh|--|-c|echo {}",
            "newgrp|-c|echo {}",
            "env|--split=echo {}",
            "su|--comm|echo {}",
            "fish|-C|echo {}",
            "fish|--comm=echo {}",
            "fish|--init-comm|echo {}",
            "nu|-e|echo {}",
            "nu|--execute|echo {}",
            "zsh-5.9|-c|echo {}",
            "bash|-c|-e|echo {}",
            "bash|-c|--|{}",
            "nice|-n|5|nohup|setsid|-w|stdbuf|-oL|doas|chroot|/|/bin/busybox|sh|-c|echo {}",
            "find|.|-exec|sh|-c|echo {}|;",
        ] {
            assert!(refused(words), "{words}");
        }
    }

    #[test]
    fn a_key_that_is_an_argument_is_not() {
        for words in [
            "sh|-c|echo \"$1\"|_|{}",
            "sh|-c|echo \"$1\"|_",
            "sh|-e|{}",
            "sh|{}|-c",
            "sh",
            "echo|{}",
            "bash|-o|pipefail|script|{}",
            "crash|-c|{}",
            "fish|-c|echo $argv|{}",
            "fish|{}",
            "su|-c|echo \"$1\"|--|me|_|{}",
            "su|me|script|{}",
            "env|A={}|printenv",
            "env|-u|S|echo|{}",
            "env|tool|-S|{}",
            "pwsh|-File|script.ps1|{}",
            "timeout|9|sudo|env|A=b|echo|{}",
            "python3|script.py|{}",
            "python3|-c|import sys; print(sys.argv[1])|{}",
            "python3.12|-u|script.py|-c|{}",
            "perl|-ne|print|{}",
            "node|--eval|f(process.argv[1])|{}",
            "node|script.js",
            "awk|{print $1}|{}",
            "awk|-F|:|-v|key={}|$1 == key",
            "awk|-f|script.awk|{}",
            "sed|-n|-e|1p|{}",
            "sed|-f|script.sed",
            "deno|run|script.ts|{}",
            "flock|file|grep|-c|{}",
            "flock|-n|file|sh|-c|echo \"$1\"|_|{}",
            "flock|file|{}",
            "script|-c|cmd \"$REQUEUE_KEY\"|{}",
            "bash|-C|{}",
            "psql|-f|{}",
            "vim|{}",
            "emacs|--batch|{}",
        ] {
            assert_eq!(said(words), Ok(None), "{words}");
        }
    }

    #[test]
    fn a_key_that_is_code_of_an_interpreter_or_of_another_host_is_warned_of() {
        for (words, program) in [
            ("python3|-c|print('{}')", "python"),
            ("/usr/bin/python3.12|-Ic|print('{}')", "python"),
            ("python3|-c", "python"),
            ("sudo|-u|me|perl|-lne|print '{}'|file", "perl"),
            ("perl|-e{}", "perl"),
            ("ruby|-e|puts '{}'", "ruby"),
            ("node|-e|f('{}')", "node"),
            ("node|--eval=f('{}')", "node"),
            ("php|-r|f('{}');", "php"),
            ("deno|eval|f('{}')", "deno"),
            ("awk|/{}/ {print $1}|file", "awk"),
            ("gawk|-F:|-e|/{}/|file", "gawk"),
            ("sed|-i|s/{}/x/|file", "sed"),
            ("sed|-n", "sed"),
            ("ssh|host|echo|{}", "ssh"),
            ("ssh|host|rm", "ssh"),
            ("ssh|host|sh|-c|'cmd \"$1\"'|_|{}", "ssh"),
            ("watch|ls|{}", "watch"),
            ("tmux|new|-d|ls {}", "tmux"),
            ("hyperfine|ls {}", "hyperfine"),
            ("node|--ev|f('{}')", "node"),
            ("perl5.36|-e|{}", "perl"),
            ("luajit|-e|f('{}')", "luajit"),
            ("psql|db|-c|select '{}'", "psql"),
            ("mysql|--exec=select '{}'", "mysql"),
            ("gdb|-ex|{}", "gdb"),
            ("emacs|--batch|--eval|{}", "emacs"),
            ("vim|-c|{}", "vim"),
        ] {
            let warning = said(words).unwrap_or_else(|error| panic!("{words}: {error}"));
            let warning = warning.unwrap_or_else(|| panic!("{words}: no warning"));
            assert!(warning.contains(program) && warning.contains("run as code"), "{warning}");
        }
    }
}
