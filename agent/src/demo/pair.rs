//! The demo's two processes: started with their folder, ended with it.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::DemoError;

const PROVIDER: &str = include_str!("provider.py");
const CLIENT: &str = include_str!("client.py");

/// A folder of our own, removed at the end.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> std::io::Result<Self> {
        let base = std::env::temp_dir();
        // Several demos may run at once, and tests in one process.
        for n in 0..1_000 {
            let path = base.join(format!("tokengauge-demo-{}-{n}", std::process::id()));
            match std::fs::create_dir(&path) {
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e),
                Ok(()) => return Ok(Self(path)),
            }
        }
        Err(std::io::Error::other("no free name for a temporary folder"))
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Where both processes write what they did.
    pub fn truth(&self) -> PathBuf {
        self.file("truth.jsonl")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The provider and its clients; both end with this.
pub struct Pair {
    provider: Child,
    clients: Child,
    /// Where the provider listens.
    pub port: u16,
}

impl Pair {
    /// Starts both; the clients wait for [`Pair::go`]. `count` bounds the requests.
    pub fn start(folder: &Folder, plain: bool, count: Option<u32>) -> Result<Self, DemoError> {
        std::fs::write(folder.file("provider.py"), PROVIDER)?;
        std::fs::write(folder.file("client.py"), CLIENT)?;
        let _ = std::fs::remove_file(folder.truth());
        let mut provider = python(&folder.file("provider.py"));
        provider.arg("--truth").arg(folder.truth()).arg("--dir").arg(&folder.0).args(plain.then_some("--plain"));
        let mut provider = spawn(provider.stdout(Stdio::piped()).stdin(Stdio::null()))?;
        let (port, cert) = match greeting(&mut provider) {
            Ok(found) => found,
            Err(error) => {
                end(&mut provider);
                return Err(error);
            }
        };
        let mut clients = python(&folder.file("client.py"));
        clients.arg("--truth").arg(folder.truth()).args(["--gate", "--port", &port.to_string()]);
        clients.args(plain.then_some("--plain"));
        if let Some(cert) = cert {
            clients.args(["--cert", &cert]);
        }
        if let Some(n) = count {
            clients.args(["--count", &n.to_string()]);
        }
        match spawn(clients.stdin(Stdio::piped())) {
            Ok(clients) => Ok(Self { provider, clients, port }),
            Err(error) => {
                end(&mut provider);
                Err(error)
            }
        }
    }

    /// Provider and clients.
    pub fn pids(&self) -> [u32; 2] {
        [self.provider.id(), self.clients.id()]
    }

    /// Opens the gate.
    pub fn go(&mut self) -> std::io::Result<()> {
        match self.clients.stdin.as_mut() {
            Some(gate) => gate.write_all(b"go\n"),
            None => Ok(()),
        }
    }

    /// Whether the clients have asked all they were to ask.
    pub fn clients_ended(&mut self) -> bool {
        !matches!(self.clients.try_wait(), Ok(None))
    }

    /// Ends both, the clients first.
    pub fn end(&mut self) {
        end(&mut self.clients);
        end(&mut self.provider);
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.end();
    }
}

fn python(script: &Path) -> Command {
    let mut command = Command::new("python3");
    command.arg(script);
    command
}

fn spawn(command: &mut Command) -> Result<Child, DemoError> {
    command.spawn().map_err(|e| DemoError::Pair(format!("cannot start python3 ({e}); `make demo` installs it")))
}

/// The provider's first line: where it listens, and its certificate.
fn greeting(provider: &mut Child) -> Result<(u16, Option<String>), DemoError> {
    let mut line = String::new();
    if let Some(out) = provider.stdout.take() {
        let _ = BufReader::new(out).read_line(&mut line);
    }
    let value: serde_json::Value = serde_json::from_str(&line).unwrap_or_default();
    let port = value.get("port").and_then(serde_json::Value::as_u64).and_then(|p| u16::try_from(p).ok());
    let cert = value.get("cert").and_then(serde_json::Value::as_str).map(str::to_owned);
    let port = port.ok_or_else(|| {
        DemoError::Pair("the demo's provider did not start (python3 3.9 and openssl are needed; its own words are above)".into())
    })?;
    Ok((port, cert))
}

/// Asks a child to end, waits a moment, insists.
fn end(child: &mut Child) {
    for signal in [libc::SIGTERM, libc::SIGKILL] {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        if let Ok(pid) = i32::try_from(child.id()) {
            signal_to(pid, signal);
        }
        for _ in 0..40 {
            if !matches!(child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(25));
        }
    }
}

#[allow(unsafe_code, reason = "kill(2) has no safe form in std; the pid is that of a child that was not waited for")]
fn signal_to(pid: i32, signal: i32) {
    // SAFETY: no memory is involved.
    unsafe {
        libc::kill(pid, signal);
    }
}
