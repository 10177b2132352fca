//! Chromium, driven by its own protocol over a pair of pipes, with a NUL after each message.

use std::cell::RefCell;
use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

/// A time limit that a browser exceeds only if it hangs.
const DEADLINE: Duration = Duration::from_secs(900);

/// A browser with one page.
pub(crate) struct Chromium {
    process: Child,
    profile: PathBuf,
    wire: RefCell<Wire>,
    session: String,
}

struct Wire {
    to: ChildStdin,
    from: Receiver<Value>,
    last: u64,
    /// The events that it sent.
    events: Vec<Value>,
}

impl Wire {
    #[track_caller]
    fn next(&mut self) -> Value {
        self.from.recv_timeout(DEADLINE).expect("chromium answers")
    }

    #[track_caller]
    fn call(&mut self, session: Option<&str>, method: &str, params: Value) -> Value {
        self.last += 1;
        let mut message = json!({ "id": self.last, "method": method, "params": params });
        if let Some(session) = session {
            message["sessionId"] = json!(session);
        }
        self.to.write_all(format!("{message}\0").as_bytes()).expect("chromium reads");
        loop {
            let mut answer = self.next();
            if answer["id"] != json!(self.last) {
                self.events.push(answer);
                continue;
            }
            assert!(answer["error"].is_null(), "{method}: {}", answer["error"]);
            return answer["result"].take();
        }
    }
}

/// Returns the path of Chromium, if it is installed. Otherwise records that the test was skipped.
pub(crate) fn find(test: &str) -> Option<OsString> {
    let found = std::env::var_os("CHROMIUM").or_else(|| {
        let names = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path)
            .flat_map(|dir| names.map(|name| dir.join(name)))
            .chain(["/Applications/Google Chrome.app/Contents/MacOS/Google Chrome".into()])
            .find(|path| path.is_file())
            .map(PathBuf::into_os_string)
    });
    if found.is_none() {
        skip(test, "there is no chromium here");
    }
    found
}

/// Returns the source of axe-core, if the variable `AXE` names its file, such as `axe.min.js` of the package `axe-core`.
/// Otherwise records that the test was skipped.
pub(crate) fn axe(test: &str) -> Option<String> {
    match std::env::var_os("AXE") {
        Some(file) => Some(fs::read_to_string(file).expect("the file of AXE can be read")),
        None => {
            skip(test, "AXE does not name a file of axe-core");
            None
        }
    }
}

fn skip(test: &str, why: &str) {
    eprintln!("{test}: {why}");
    if let Some(list) = std::env::var_os("REQUEUE_NOT_RUN") {
        let list = fs::OpenOptions::new().append(true).create(true).open(list);
        let mut list = list.expect("the list can be opened");
        writeln!(list, "{test}: {why}").expect("the list can be written");
    }
}

impl Chromium {
    #[track_caller]
    pub(crate) fn start(program: &OsString, test: &str) -> Self {
        let profile = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("profile-{test}"));
        let _ = fs::remove_dir_all(&profile);
        let mut process = Command::new("sh")
            // The protocol uses the descriptors 3 and 4.
            .args(["-c", r#"exec "$@" 3<&0 4>&1 </dev/null >/dev/null 2>&1"#, "sh"])
            .arg(program)
            .arg(format!("--user-data-dir={}", profile.display()))
            .args([
                "--headless",
                "--remote-debugging-pipe",
                // The sandbox does not work for root and in most containers. The browser opens only the tested page.
                "--no-sandbox",
                "--disable-dev-shm-usage",
                "--disable-gpu",
                "--no-first-run",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-extensions",
                "--disable-sync",
                "--hide-scrollbars",
                "--lang=en-GB",
                "--no-proxy-server",
                "about:blank",
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell");
        let to = process.stdin.take().expect("the stream is piped");
        let stdout = process.stdout.take().expect("the stream is piped");
        let (sender, from) = mpsc::channel();
        thread::spawn(move || {
            let messages = BufReader::new(stdout).split(0).map_while(Result::ok);
            for message in messages {
                let message = serde_json::from_slice(&message).expect("messages are JSON");
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        let mut wire = Wire { to, from, last: 0, events: Vec::new() };
        let target = wire.call(None, "Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let attached = wire.call(None, "Target.attachToTarget", attach);
        let session = attached["sessionId"].as_str().expect("a session").to_owned();
        let this = Self { process, profile, wire: RefCell::new(wire), session };
        for domain in ["Page", "Runtime", "Log", "Network", "Accessibility"] {
            this.call(&format!("{domain}.enable"), json!({}));
        }
        this
    }

    #[track_caller]
    pub(crate) fn call(&self, method: &str, params: Value) -> Value {
        self.wire.borrow_mut().call(Some(&self.session), method, params)
    }

    /// Evaluates an expression, and awaits a promise.
    #[track_caller]
    pub(crate) fn eval(&self, expression: &str) -> Value {
        let params = json!({
            "expression": expression,
            "awaitPromise": true,
            "returnByValue": true,
        });
        let mut result = self.call("Runtime.evaluate", params);
        assert!(result["exceptionDetails"].is_null(), "{expression}: {result}");
        result["result"]["value"].take()
    }

    /// Waits until an expression is true.
    #[track_caller]
    pub(crate) fn wait_for(&self, expression: &str) {
        let limit = DEADLINE.as_millis();
        let holds = self.eval(&format!(
            "new Promise((done) => {{
                const start = performance.now();
                const look = () => {{
                    if ({expression}) done(true);
                    else if (performance.now() - start > {limit} / 2) done(false);
                    else setTimeout(look, 20);
                }};
                look();
            }})"
        ));
        if holds != json!(true) {
            panic!("{expression} did not come true: {}", self.eval("document.body.innerText"));
        }
    }

    #[track_caller]
    pub(crate) fn open(&self, url: &str) {
        self.call("Page.navigate", json!({ "url": url }));
        self.wait_for(&format!("location.href === '{url}' && document.readyState === 'complete'"));
    }

    /// Presses and releases a key: "Tab", "Enter", "ArrowRight", or a character.
    #[track_caller]
    pub(crate) fn press(&self, key: &str) {
        let code = match key {
            "Tab" => 9,
            "Enter" => 13,
            " " => 32,
            "ArrowLeft" => 37,
            "ArrowRight" => 39,
            character => character.bytes().next().map_or(0, |byte| byte.to_ascii_uppercase()),
        };
        let text = match key {
            "Enter" => "\r",
            _ if key.len() == 1 => key,
            _ => "",
        };
        for kind in [if text.is_empty() { "rawKeyDown" } else { "keyDown" }, "keyUp"] {
            let mut event = json!({ "type": kind, "key": key, "windowsVirtualKeyCode": code });
            if kind == "keyDown" {
                event["text"] = json!(text);
            }
            self.call("Input.dispatchKeyEvent", event);
        }
    }

    #[track_caller]
    pub(crate) fn type_text(&self, text: &str) {
        for char in text.chars() {
            self.press(&char.to_string());
        }
    }

    /// Sets the size of the window, and the preferred colour scheme.
    #[track_caller]
    pub(crate) fn look(&self, width: u32, height: u32, scheme: &str) {
        self.call(
            "Emulation.setDeviceMetricsOverride",
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false }),
        );
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.call("Emulation.setEmulatedMedia", json!({ "features": features }));
        self.eval(
            "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))",
        );
    }

    /// Saves a screenshot of the window.
    #[track_caller]
    pub(crate) fn screenshot(&self, name: &str) {
        let shot = self.call("Page.captureScreenshot", json!({ "format": "png" }));
        let png = STANDARD.decode(shot["data"].as_str().expect("a picture")).expect("base64");
        let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name).with_extension("png");
        fs::write(file, png).expect("the screenshot can be written");
    }

    /// Returns the events with this name.
    pub(crate) fn told(&self, method: &str) -> Vec<Value> {
        let wire = self.wire.borrow();
        let events = wire.events.iter().filter(|event| event["method"] == json!(method));
        events.map(|event| event["params"].clone()).collect()
    }

    /// Returns the errors and warnings in the console.
    pub(crate) fn complaints(&self) -> Vec<String> {
        // Earlier events have arrived after the next response.
        self.eval("1");
        let kinds = ["Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled"];
        kinds.iter().flat_map(|kind| self.told(kind)).map(|event| event.to_string()).collect()
    }

    /// Returns the URLs of all requests.
    pub(crate) fn requests(&self) -> Vec<String> {
        let sent = self.told("Network.requestWillBeSent");
        let url = |event: &Value| event["request"]["url"].as_str().unwrap_or_default().to_owned();
        sent.iter().map(url).collect()
    }
}

impl Drop for Chromium {
    fn drop(&mut self) {
        let mut wire = self.wire.borrow_mut();
        let _ = wire.to.write_all(b"{\"id\":0,\"method\":\"Browser.close\"}\0");
        // The browser exits, or is killed if it hangs.
        while wire.from.recv_timeout(Duration::from_secs(10)).is_ok() {}
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.profile);
    }
}
