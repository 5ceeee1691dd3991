// SPDX-License-Identifier: AGPL-3.0-only
//! A connection's bytes under watch. HTTP/2's machinery does not count the frames that cost their
//! sender nothing, so their heads are looked at here as they pass. A peer that floods is told so by
//! a GOAWAY and heard no more; what it still sends is thrown away for a moment, because closing a
//! socket with unread bytes would take the GOAWAY back.

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{ready, Context, Poll};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;
use tokio_rustls::server::TlsStream;

use crate::figures::Figures;
use crate::floods::{Flood, Floods};
use crate::frames::{calm, Frames, HEADERS, PREFACE_BYTES, SETTINGS};

const LINGER: Duration = Duration::from_millis(500);
const LINGER_BYTES: usize = 1024 * 1024;

pub enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

macro_rules! inner {
    ($stream:expr, $method:ident $(, $argument:expr)*) => {
        match $stream {
            Stream::Plain(stream) => Pin::new(stream).$method($($argument),*),
            Stream::Tls(stream) => Pin::new(stream.as_mut()).$method($($argument),*),
        }
    };
}

struct Linger {
    until: Pin<Box<Sleep>>,
    left: usize,
}

pub struct Watched {
    stream: Stream,
    came: Frames,
    sent: Frames,
    floods: Floods,
    last_stream: u32,
    greeted: Rc<Cell<bool>>,
    figures: Arc<Figures>,
    linger: Option<Linger>,
}

impl Watched {
    /// `greeted` is set when the peer has said what HTTP/2 begins with.
    pub fn new(
        stream: Stream,
        ping_interval: Duration,
        greeted: Rc<Cell<bool>>,
        figures: Arc<Figures>,
    ) -> Self {
        Self {
            stream,
            came: Frames::after(PREFACE_BYTES),
            sent: Frames::after(0),
            floods: Floods::new(ping_interval, Instant::now()),
            last_stream: 0,
            greeted,
            figures,
            linger: None,
        }
    }

    /// Look at what has come; return what there is too much of.
    fn look(&mut self, bytes: &[u8]) -> Option<Flood> {
        let Self { came, floods, last_stream, greeted, .. } = self;
        let mut flood = None;
        let mut now = None;
        came.pass(bytes, |head| {
            let now = *now.get_or_insert_with(Instant::now);
            if head.kind == SETTINGS {
                greeted.set(true);
            } else if head.kind == HEADERS {
                *last_stream = head.stream.max(*last_stream);
            }
            flood = flood.or(floods.came(head, now));
        });
        flood
    }

    fn note(&mut self, bytes: &[u8]) {
        let Self { sent, floods, .. } = self;
        sent.pass(bytes, |head| floods.sent(head));
    }

    fn cut(&mut self, flood: Flood, context: &mut Context<'_>) {
        match flood {
            Flood::Pings => self.figures.pings_cut.up(),
            Flood::Resets => self.figures.resets_cut.up(),
            Flood::Other => self.figures.floods_cut.up(),
        }
        if self.sent.is_between() {
            // As far as the socket takes it: who floods and does not read gets no reason.
            let goaway = calm(self.last_stream, flood.why());
            let _ = inner!(&mut self.stream, poll_write, context, &goaway);
            let _ = inner!(&mut self.stream, poll_flush, context);
            let _ = inner!(&mut self.stream, poll_shutdown, context);
        }
        let until = Box::pin(tokio::time::sleep(LINGER));
        self.linger = Some(Linger { until, left: LINGER_BYTES });
    }

    fn poll_linger(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(linger) = &mut self.linger else { return Poll::Pending };
        let mut scratch = [0u8; 4096];
        while linger.left > 0 && linger.until.as_mut().poll(context).is_pending() {
            let mut buffer = ReadBuf::new(&mut scratch);
            match ready!(inner!(&mut self.stream, poll_read, context, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => {
                    linger.left = linger.left.saturating_sub(buffer.filled().len());
                }
                _ => break,
            }
        }
        Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()))
    }
}

impl AsyncRead for Watched {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.linger.is_none() {
            let before = buffer.filled().len();
            ready!(inner!(&mut this.stream, poll_read, context, buffer))?;
            let Some(flood) = this.look(&buffer.filled()[before..]) else {
                return Poll::Ready(Ok(()));
            };
            buffer.set_filled(before);
            this.cut(flood, context);
        }
        this.poll_linger(context)
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.linger.is_some() {
            return Poll::Ready(Ok(bytes.len()));
        }
        let count = ready!(inner!(&mut this.stream, poll_write, context, bytes))?;
        this.note(&bytes[..count]);
        Poll::Ready(Ok(count))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.linger.is_some() {
            return Poll::Ready(Ok(slices.iter().map(|slice| slice.len()).sum()));
        }
        let count = ready!(inner!(&mut this.stream, poll_write_vectored, context, slices))?;
        let mut left = count;
        for slice in slices {
            let part = left.min(slice.len());
            this.note(&slice[..part]);
            left -= part;
        }
        Poll::Ready(Ok(count))
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Plain(stream) => stream.is_write_vectored(),
            Stream::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.linger.is_some() {
            return Poll::Ready(Ok(()));
        }
        inner!(&mut this.stream, poll_flush, context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.linger.is_some() {
            return Poll::Ready(Ok(()));
        }
        inner!(&mut this.stream, poll_shutdown, context)
    }
}
