//! Signals: those that end the agent, and the one that has files read again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::tap::StopFlag;

/// SIGTERM and SIGINT set the flag; a second one ends the process at once, with the code that a shell would give it.
pub(crate) fn signals(stop: &StopFlag) -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut terminate, mut interrupt) = {
        let _entered = runtime.enter();
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?)
    };
    let stop = stop.clone();
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        runtime.block_on(async {
            loop {
                let number = tokio::select! {
                    _ = terminate.recv() => SignalKind::terminate(),
                    _ = interrupt.recv() => SignalKind::interrupt(),
                };
                if stop.is_set() {
                    std::process::exit(128 + number.as_raw_value());
                }
                eprintln!("tokengauge: stopping");
                stop.stop();
                // What sends one signal to a process and to its group (timeout, some supervisors) means one, not two.
                tokio::time::sleep(Duration::from_millis(500)).await;
                if let (Ok(t), Ok(i)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) {
                    (terminate, interrupt) = (t, i);
                }
            }
        });
    })?;
    Ok(())
}

/// SIGHUP: SLO files are read again, the file of records is opened again. Each that wants to know has a flag of its own.
#[derive(Default)]
pub(super) struct Hangups(Arc<Mutex<Vec<Arc<AtomicBool>>>>);

impl Hangups {
    /// A flag that every SIGHUP sets.
    pub(super) fn flag(&self) -> Arc<AtomicBool> {
        let flag = Arc::new(AtomicBool::new(false));
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&flag));
        flag
    }

    /// Begins to listen; until then SIGHUP ends the process, as it does with everyone who knows nothing of it.
    pub(super) fn listen(&self) -> std::io::Result<()> {
        use tokio::signal::unix::{SignalKind, signal};
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let mut hangup = {
            let _entered = runtime.enter();
            signal(SignalKind::hangup())?
        };
        let flags = Arc::clone(&self.0);
        std::thread::Builder::new().name("hangups".into()).spawn(move || {
            runtime.block_on(async {
                while hangup.recv().await.is_some() {
                    flags.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(|f| f.store(true, Ordering::Relaxed));
                }
            });
        })?;
        Ok(())
    }
}
