//! Refuses commands in which a shell would run the key as code. Keys are untrusted, because other users choose file
//! names and IDs.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use crate::exit::Refusal;
use crate::process::mark::Marks;

/// POSIX shells. They take the script from the argument after `-c`. Further arguments are the arguments of the script.
const POSIX: &str =
    "sh ash bash brush dash hush ksh lksh loksh mksh oksh osh pdksh posh rbash rksh yash zsh";
/// Shells with another language that take a script in the same way.
const OTHERS: &str = "csh fish tcsh";
/// Programs that let a shell run the value of their option `-c`. The option can be anywhere among their arguments.
const BY_SHELL: &str = "flock runuser script su";

/// Refuses a command in which a shell would run the key as code. In such a command, the script of `sh -c`, `su -c` or
/// a similar program is the key or contains it. The program can follow `env`, `timeout`, `sudo` or any other program
/// that runs its arguments as a command.
pub(crate) fn refuse_code_from_keys(words: &[OsString], marks: Marks<'_>) -> Result<(), Refusal> {
    // If no word contains a placeholder, the key becomes the last argument.
    let appended = !words.iter().any(|word| marks.is_in(word));
    let is_key = |code: &[OsString]| match code {
        [] => appended,
        code => code.iter().any(|word| marks.is_in(word)),
    };
    for (at, word) in words.iter().enumerate() {
        let name = program_name(word);
        let args = &words[at + 1..];
        let is_code = if is_in(POSIX, name) || is_in(OTHERS, name) {
            script_argument(args, marks).is_some_and(is_key)
        } else if is_in(BY_SHELL, name) {
            let options = if name == b"flock" { options_of_flock(args) } else { args.len() };
            (0..options).any(|at| takes_script(&args[at]) && is_key(option_value(args, at, marks)))
        } else {
            false
        };
        if is_code {
            return Err(script_refusal(marks, Some(&String::from_utf8_lossy(name))));
        }
    }
    Ok(())
}

/// Refuses a script that contains the placeholder.
pub(crate) fn refuse_mark_in_script(script: &OsStr, marks: Marks<'_>) -> Result<(), Refusal> {
    if marks.is_in(script) { Err(script_refusal(marks, None)) } else { Ok(()) }
}

/// Returns true if `name` is one of the words in `names`.
fn is_in(names: &str, name: &[u8]) -> bool {
    names.split(' ').any(|other| other.as_bytes() == name)
}

/// Returns the name of a program without its directory and version, for example `python` for `/usr/bin/python3.12`.
fn program_name(word: &OsStr) -> &[u8] {
    let name = word.as_bytes().rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    let is_version = |byte: &u8| byte.is_ascii_digit() || matches!(byte, b'.' | b'-');
    let end = name.iter().rposition(|byte| !is_version(byte)).map_or(0, |last| last + 1);
    &name[..end]
}

/// Returns the script among the arguments of a shell. Returns `None` if the arguments contain no script. The script is
/// empty if `-c` is the last argument.
fn script_argument<'a>(args: &'a [OsString], marks: Marks<'_>) -> Option<&'a [OsString]> {
    let mut has_script = false;
    let mut at = 0;
    while let Some(arg) = args.get(at) {
        match arg.as_bytes() {
            b"--" | b"-" => {
                at += 1;
                break;
            }
            b"--rcfile" | b"--init-file" => at += 1,
            [b'-', b'-', ..] => {}
            // fish accepts the script in the same word as the option, as `-cSCRIPT`.
            [b'-', letters @ ..]
                if letters.contains(&b'c') && marks.find_first(letters).is_some() =>
            {
                return Some(&args[at..=at]);
            }
            [sign @ (b'-' | b'+'), letters @ ..] => {
                has_script |= *sign == b'-' && letters.contains(&b'c');
                // `-o` takes the name of a shell option, such as `pipefail`, from the next word. That word is skipped.
                at += letters.iter().filter(|letter| matches!(letter, b'o' | b'O')).count();
            }
            _ => break,
        }
        at += 1;
    }
    has_script.then(|| word_at(args, at))
}

/// Returns the word at `at` as a slice. The slice is empty if there is no such word.
fn word_at(words: &[OsString], at: usize) -> &[OsString] {
    words.get(at).map_or(&[], std::slice::from_ref)
}

/// Returns true for `--command`, and for `-c` alone or among other letters.
fn takes_script(arg: &OsStr) -> bool {
    match arg.as_bytes() {
        b"--command" => true,
        [b'-', b'-', long @ ..] => long.starts_with(b"command="),
        [b'-', letters @ ..] => letters.contains(&b'c'),
        _ => false,
    }
}

/// Returns the script of the option at `at`. The script is in the word itself if that word contains the key.
/// Otherwise, it is the next word.
fn option_value<'a>(args: &'a [OsString], at: usize, marks: Marks<'_>) -> &'a [OsString] {
    word_at(args, if marks.is_in(&args[at]) { at } else { at + 1 })
}

/// Returns the number of arguments that can contain flock's own `-c`. flock accepts `-c` after the file. Options after
/// the second operand belong to the command that flock runs.
fn options_of_flock(args: &[OsString]) -> usize {
    let is_operand = |arg: &OsString| !matches!(arg.as_bytes(), [b'-' | b'0'..=b'9', ..]);
    let operands = args.iter().enumerate().filter(|(_, arg)| is_operand(arg));
    operands.map(|(at, _)| at).nth(1).unwrap_or(args.len())
}

fn script_refusal(marks: Marks<'_>, shell: Option<&str>) -> Refusal {
    let mark = marks.key_mark();
    let direct = match shell {
        Some(shell) if is_in(POSIX, shell.as_bytes()) => {
            format!("\n  -- {shell} -c 'cmd \"$1\"' _ {mark}")
        }
        _ => String::new(),
    };
    Refusal::usage(format!(
        "a key inside a script would be run as code. Pass it as an argument:{direct}
  -c 'cmd \"$1\"'
or let the script read the variable REQUEUE_KEY.
If {mark} is not meant for the key, choose another placeholder with -I."
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_refused(words: &str) -> bool {
        let words: Vec<_> = words.split('|').map(OsString::from).collect();
        refuse_code_from_keys(&words, Marks::Braces).is_err()
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
            "/usr/local/bin/ksh93|-c|echo {}",
            "busybox|ash|-c|echo {}",
            "tcsh|-fc|echo {}",
            "sudo|-u|me|timeout|9|nice|mksh|-c|echo {}",
            "xargs|-0|yash|-c|echo {}",
            "su|-c|echo {}",
            "su|-|me|-c|echo {}",
            "su|me|--command=echo {}",
            "su|me|-c",
            "sudo|runuser|-u|me|-c|echo {}",
            "flock|file|-c|echo {}",
            "flock|-x|-w|9|file|--command|echo {}",
            "flock|file|-c",
            "script|-qec|echo {}|/dev/null",
            "script|/dev/null|--command=echo {}",
            "zsh-5.9|-c|echo {}",
            "bash|-c|-e|echo {}",
            "bash|-c|--|{}",
            "nice|-n|5|nohup|setsid|-w|stdbuf|-oL|doas|chroot|/|/bin/busybox|sh|-c|echo {}",
            "find|.|-exec|sh|-c|echo {}|;",
        ] {
            assert!(is_refused(words), "{words}");
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
            "sh|-o",
            "echo|{}",
            "bash|-o|pipefail|script|{}",
            "bash|-C|{}",
            "crash|-c|{}",
            "fish|-c|echo $argv|{}",
            "fish|{}",
            "su|-c|echo \"$1\"|--|me|_|{}",
            "su|me|script|{}",
            "timeout|9|sudo|env|A=b|echo|{}",
            "flock|file|grep|-c|{}",
            "flock|-n|file|sh|-c|echo \"$1\"|_|{}",
            "flock|file|{}",
            "script|-c|cmd \"$REQUEUE_KEY\"|{}",
            "grep|-c|{}",
        ] {
            assert!(!is_refused(words), "{words}");
        }
    }
}
