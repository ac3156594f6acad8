//! quinn on one chosen runtime of ours.
//!
//! Owns what quinn asks a runtime for: tasks, time and sockets. Made when a lane is bound. The one rule: what quinn no longer waits for
//! does not wake a sleeping node.

use std::future::Future;
use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncTimer, AsyncUdpSocket, Runtime, TokioRuntime, UdpPoller};
use tokio::runtime::Handle;
use tokio::time::{Sleep, sleep_until};

/// The most that the kernel hands over as one datagram, however many it has joined.
const JOINED_BYTES_MAX: usize = 65_535;

/// A timer that is taken out when it is set anew. tokio's own stays where it was when it is set to later, and wakes the thread for
/// nothing: each question sets one to when it would be sent again, and the answer sets it back.
#[derive(Debug)]
struct Alarm {
    handle: Handle,
    sleep: Pin<Box<Sleep>>,
}

impl AsyncTimer for Alarm {
    fn reset(mut self: Pin<&mut Self>, at: Instant) {
        let Self { handle, sleep } = &mut *self;
        let _inside = handle.enter();
        sleep.set(sleep_until(at.into()));
    }

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        Future::poll(self.sleep.as_mut(), context)
    }
}

/// A socket as quinn's, that asks for no more memory than one read can fill: quinn makes room for 64 joined datagrams of the largest size,
/// which is six times what the kernel joins.
#[derive(Debug)]
struct Snug {
    inner: Arc<dyn AsyncUdpSocket>,
    segments_max: usize,
}

impl AsyncUdpSocket for Snug {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        self.inner.clone().create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.inner.try_send(transmit)
    }

    fn poll_recv(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        self.inner.poll_recv(context, buffers, meta)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.inner.max_transmit_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.inner.max_receive_segments().min(self.segments_max)
    }

    fn may_fragment(&self) -> bool {
        self.inner.may_fragment()
    }
}

/// Runs an endpoint's tasks on one chosen runtime, whoever calls: renewals have a thread of their own.
#[derive(Debug)]
pub(super) struct OnRuntime {
    pub(super) handle: Handle,
    /// The largest packet that is received.
    pub(super) packet_bytes_max: usize,
}

impl Runtime for OnRuntime {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        let _inside = self.handle.enter();
        Box::pin(Alarm {
            handle: self.handle.clone(),
            sleep: Box::pin(sleep_until(at.into())),
        })
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        self.handle.spawn(future);
    }

    fn wrap_udp_socket(&self, socket: UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        let _inside = self.handle.enter();
        Ok(Arc::new(Snug {
            inner: TokioRuntime.wrap_udp_socket(socket)?,
            segments_max: JOINED_BYTES_MAX.div_ceil(self.packet_bytes_max),
        }))
    }

    fn now(&self) -> Instant {
        TokioRuntime.now()
    }
}
