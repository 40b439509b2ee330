//! One thread owns a device; all others send it messages.

use crate::error::{Error, Result};
use sconce_ops::{Device, Ladder, threads};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// The thread that owns a device and the model on it. Dropping it closes the channel and waits
/// until the thread has handled the messages already sent.
pub(crate) struct DeviceThread<M> {
    device: Device,
    messages: Option<Sender<M>>,
    thread: Option<JoinHandle<()>>,
}

impl<M: Send + 'static> DeviceThread<M> {
    /// Starts the thread. The thread enters `ladder`, creates its state with `make`, so that all
    /// work on the device happens on one thread, and then serves messages with `run` until there
    /// are no more senders. Waits until `make` is done, and returns its error.
    pub(crate) fn start<S: 'static>(
        device: Device,
        ladder: Arc<Ladder>,
        make: impl FnOnce() -> Result<S> + Send + 'static,
        run: impl FnOnce(S, Receiver<M>) + Send + 'static,
    ) -> Result<DeviceThread<M>> {
        let (messages, inbox) = channel();
        let (ready, started) = channel();
        let body = move || {
            if device == Device::Cpu {
                threads::lead();
            }
            let _entered = ladder.enter();
            match catch_panic(device, make) {
                Ok(state) => {
                    let _ = ready.send(Ok(()));
                    run(state, inbox);
                }
                Err(e) => drop(ready.send(Err(e))),
            }
        };
        let thread = std::thread::Builder::new()
            .name(format!("sconce {device}"))
            .spawn(body)
            .map_err(|e| Error::Stopped { device, why: format!("it could not be started: {e}") })?;
        started.recv().unwrap_or_else(|_| Err(Error::Stopped { device, why: "it ended while loading".into() }))?;
        Ok(DeviceThread { device, messages: Some(messages), thread: Some(thread) })
    }

    pub(crate) fn send(&self, message: M) -> Result<()> {
        let sent = self.messages.as_ref().map(|messages| messages.send(message));
        sent.and_then(Result::ok).ok_or_else(|| self.stopped_error())
    }

    pub(crate) fn device(&self) -> Device {
        self.device
    }

    /// The error for callers whose answer will never come.
    pub(crate) fn stopped_error(&self) -> Error {
        Error::Stopped { device: self.device, why: "unknown reason".into() }
    }
}

impl<M> Drop for DeviceThread<M> {
    fn drop(&mut self) {
        // Closing the channel ends the loop. The model must be dropped before its device.
        self.messages = None;
        // If a message held the last handle, this runs on the device thread itself, which cannot
        // join itself.
        let is_elsewhere = |thread: &JoinHandle<()>| thread.thread().id() != std::thread::current().id();
        if let Some(thread) = self.thread.take().filter(is_elsewhere) {
            let _ = thread.join();
        }
    }
}

/// Runs `f` and turns a panic into an error.
pub(crate) fn catch_panic<T>(device: Device, f: impl FnOnce() -> Result<T>) -> Result<T> {
    let panicked = |panic: Box<dyn Any + Send>| Err(Error::Panicked { device, why: panic_message(&*panic) });
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(panicked)
}

/// The message of a panic.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    text.unwrap_or("no message").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn load_failures_are_returned_by_start() {
        let start = |make: fn() -> Result<()>| DeviceThread::<()>::start(Device::Cpu, Arc::default(), make, |(), _| ());
        assert!(matches!(start(|| Err(Error::Input("no".into()))), Err(Error::Input(_))));
        assert!(matches!(start(|| panic!("boom")), Err(Error::Panicked { .. })));
    }

    #[test]
    fn last_handle_may_be_dropped_on_the_device_thread() {
        struct Model(Sender<()>);
        impl Drop for Model {
            fn drop(&mut self) {
                let _ = self.0.send(());
            }
        }
        type Job = Box<dyn FnOnce() + Send>;
        let (gone, seen) = channel();
        let run = |_model: Model, inbox: Receiver<Job>| inbox.into_iter().for_each(|job| job());
        let thread = DeviceThread::start(Device::Cpu, Arc::default(), move || Ok(Model(gone)), run).unwrap();
        let thread = Arc::new(thread);
        let (go, wait) = channel::<()>();
        let last = thread.clone();
        let job = move || {
            let _ = wait.recv();
            drop(last);
        };
        thread.send(Box::new(job)).unwrap();
        drop(thread);
        go.send(()).unwrap();
        seen.recv_timeout(Duration::from_secs(60)).expect("the thread ends, and its model with it");
    }
}
