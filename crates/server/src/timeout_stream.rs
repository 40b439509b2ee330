//! A stream with time-outs: on reading the first bytes of a connection, and on writing to a client
//! that does not read.
//!
//! hyper has its own time-outs for the rest: between requests and within a request head (HTTP/1),
//! and pings (HTTP/2).

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// Length of the HTTP/2 preface. Until then hyper does not know the protocol and has no time-out.
const PREFACE: usize = 24;

/// A stream that fails when the client stays silent for too long.
pub struct TimeoutStream<S> {
    stream: S,
    timeout: Duration,
    read: usize,
    read_timeout: Pin<Box<Sleep>>,
    /// Runs while a write is pending.
    write_timeout: Option<Pin<Box<Sleep>>>,
}

impl<S> TimeoutStream<S> {
    /// A stream with this time-out for the first bytes and for each write.
    pub fn new(stream: S, timeout: Duration) -> TimeoutStream<S> {
        TimeoutStream { stream, timeout, read: 0, read_timeout: Box::pin(sleep(timeout)), write_timeout: None }
    }

    /// Fails a write that is pending for longer than the time-out.
    fn with_write_timeout<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.write_timeout = None;
            return written;
        }
        let deadline = Instant::now() + self.timeout;
        let write_timeout = self.write_timeout.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        ready!(write_timeout.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "write time-out: the client does not read")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimeoutStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        match Pin::new(&mut self.stream).poll_read(cx, buf) {
            Poll::Ready(read) => {
                self.read = self.read.saturating_add(buf.filled().len() - before);
                Poll::Ready(read)
            }
            Poll::Pending if self.read < PREFACE => {
                ready!(self.read_timeout.as_mut().poll(cx));
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "read time-out: the client sends nothing")))
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimeoutStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.with_write_timeout(cx, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.with_write_timeout(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.with_write_timeout(cx, shut)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.with_write_timeout(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
