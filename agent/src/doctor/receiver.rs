//! Whether the receiver of OTLP takes what would be sent to it: tried with an empty request of each signal, which is valid and means nothing, by the
//! client that the exporter has, so addresses, certificates, credentials and the protocol are those that count.

use bytes::Bytes;

use super::checks::{Check, PATIENCE, State, check};
use crate::export::otlp::carrier::Signal;
use crate::export::otlp::client::Client;
use crate::export::otlp::settings::Target;
use crate::export::otlp::{Config, Env};

/// One check for each signal that is exported.
pub fn checks(config: &Config, env: Env<'_>) -> Vec<Check> {
    Signal::ALL.into_iter().filter(|s| config.wants(*s, env)).map(|s| one(config, s, env)).collect()
}

fn one(config: &Config, signal: Signal, env: Env<'_>) -> Check {
    let mut target = match Target::new(config, signal, env) {
        Ok(target) => target,
        Err(error) => return check("OTLP", State::Fail, error.to_string()),
    };
    target.timeout = target.timeout.min(PATIENCE);
    let place = format!("{} to {} ({})", signal.name(), target.url, target.protocol.name());
    match send(target) {
        Ok(warning) if warning.is_empty() => check("OTLP", State::Ok, format!("{place}: an empty request was taken")),
        Ok(warning) => check("OTLP", State::Warn, format!("{place}: {warning}")),
        // It may come up later, and what is exported meanwhile waits.
        Err(what) => check("OTLP", State::Warn, format!("{place}: {what}")),
    }
}

/// What the receiver said to an empty request.
fn send(target: Target) -> Result<String, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| e.to_string())?;
    runtime.block_on(async {
        let client = Client::new(target).map_err(|e| e.to_string())?;
        client.send(Bytes::new()).await.map(|reply| reply.message).map_err(|failure| failure.what().to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};

    /// A receiver that gives each connection the same answer.
    fn receiver(answer: &'static [u8]) -> String {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming().take(2) {
                let mut stream = stream.unwrap();
                let _ = stream.read(&mut [0; 4096]);
                let _ = stream.write_all(answer);
            }
        });
        format!("http://{address}")
    }

    fn ask(endpoint: String) -> Vec<Check> {
        checks(&Config { endpoint: Some(endpoint), ..Config::default() }, &|_| None)
    }

    #[test]
    fn a_receiver_is_asked_as_the_exporter_would() {
        let good =
            ask(receiver(b"HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"));
        assert!(good.len() == 2 && good.iter().all(|c| c.state == State::Ok), "{good:?}");
        let refused = ask(receiver(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"));
        assert!(refused.iter().all(|c| c.state == State::Warn && c.found.contains("401") && c.next.is_some()), "{refused:?}");
        let nobody = ask("http://127.0.0.1:1".into());
        assert!(nobody.iter().all(|c| c.state == State::Warn), "{nobody:?}");
        assert!(checks(&Config::default(), &|_| None).is_empty(), "nothing is exported, so nobody is asked");
    }
}
