//! A key inside a script would be run as code: file names and ids are other people's.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use crate::exit::Refusal;
use crate::template::find;

const SHELLS: [&str; 5] = ["sh", "bash", "dash", "ksh", "zsh"];

/// Refuses a mark inside the script of `sh -c` and its kin, also behind `env`, `timeout`, `ssh
/// host` and whatever else runs its arguments; and a script that would be the key itself.
pub(crate) fn refuse_code_from_keys(words: &[OsString], mark: &[u8]) -> Result<(), Refusal> {
    let marked = words.iter().any(|word| find(word.as_bytes(), mark).is_some());
    for (at, word) in words.iter().enumerate() {
        let name = word.as_bytes().rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        let Some(shell) = SHELLS.into_iter().find(|shell| shell.as_bytes() == name) else {
            continue;
        };
        match script(&words[at + 1..]) {
            Script::Is(script) => refuse_mark_in_script(script, mark, Some(shell))?,
            Script::Missing if !marked => return Err(refusal(mark, Some(shell))),
            Script::Missing | Script::None => {}
        }
    }
    Ok(())
}

/// Refuses a script with a mark in it.
pub(crate) fn refuse_mark_in_script(
    script: &OsStr,
    mark: &[u8],
    shell: Option<&str>,
) -> Result<(), Refusal> {
    match find(script.as_bytes(), mark) {
        None => Ok(()),
        Some(_) => Err(refusal(mark, shell)),
    }
}

fn refusal(mark: &[u8], shell: Option<&str>) -> Refusal {
    let mark = String::from_utf8_lossy(mark);
    let direct = match shell {
        None => String::new(),
        Some(shell) => format!("\n  -- {shell} -c 'cmd \"$1\"' _ {mark}"),
    };
    Refusal::usage(format!(
        "a key inside a script would be run as code; it goes in as an argument:{direct}
  -c 'cmd \"$1\"'
If {mark} is the script's own, name another mark with -I."
    ))
}

enum Script<'a> {
    /// `-c` and the script.
    Is(&'a OsStr),
    /// `-c`, and nothing behind it.
    Missing,
    /// No `-c`.
    None,
}

/// The script among the arguments of a shell.
fn script(args: &[OsString]) -> Script<'_> {
    let (mut is_script, mut at) = (false, 0);
    while let Some(arg) = args.get(at) {
        at += 1;
        match arg.as_bytes() {
            b"--" | b"-" => break,
            b"--rcfile" | b"--init-file" => at += 1,
            [b'-', b'-', ..] => {}
            [sign @ (b'-' | b'+'), letters @ ..] => {
                is_script |= *sign == b'-' && letters.contains(&b'c');
                // `-o pipefail`: the option's name is a word of its own.
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

    fn refused(words: &str) -> bool {
        let words: Vec<_> = words.split('|').map(OsString::from).collect();
        refuse_code_from_keys(&words, b"{}").is_err()
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
        ] {
            assert!(!refused(words), "{words}");
        }
    }
}
