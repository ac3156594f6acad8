//! Who answers what: services by class, and within the control class by the kind of the frame.
//!
//! Owns two tables that are filled while a node boots and read by the transport at each request. The one rule: what is not registered
//! is refused with a text, never ignored.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use holdfast_proto::frame;
use holdfast_proto::id::NodeId;

use super::{Channel, Class, Refusal, Service};

/// Serves programs that are no nodes. They show no certificate: who speaks, they say and prove on the channel.
pub trait Door: Send + Sync + 'static {
    /// Serves one channel that a client opened, until it ends.
    fn serve(self: Arc<Self>, channel: Channel) -> BoxFuture<'static, ()>;
}

/// Services by class. Each is set at most once; a request that comes before is refused and may be repeated.
#[derive(Default)]
pub struct Router {
    services: BTreeMap<Class, OnceLock<Arc<dyn Service>>>,
    door: OnceLock<Arc<dyn Door>>,
}

impl Router {
    /// A table with a free place for every class.
    pub fn new() -> Self {
        Self {
            services: Class::ALL.into_iter().map(|class| (class, OnceLock::new())).collect(),
            door: OnceLock::new(),
        }
    }

    /// Opens the door for clients. Returns false when it is open already.
    pub fn open_door(&self, door: Arc<dyn Door>) -> bool {
        self.door.set(door).is_ok()
    }

    /// The door for clients, once it is open.
    pub fn door(&self) -> Option<Arc<dyn Door>> {
        self.door.get().cloned()
    }

    /// Registers the service of a class. Returns false when the class has one already.
    pub fn register(&self, class: Class, service: Arc<dyn Service>) -> bool {
        self.services
            .get(&class)
            .is_some_and(|place| place.set(service).is_ok())
    }

    /// The service of a class, or the text of a refusal.
    pub fn service(&self, class: Class) -> Result<Arc<dyn Service>, Refusal> {
        let service = self.services.get(&class).and_then(OnceLock::get);
        service
            .cloned()
            .ok_or_else(|| Refusal(format!("{class:?} is not served here yet")))
    }
}

/// Services by the kind in a frame's header: the control class carries many small questions.
#[derive(Default)]
pub struct KindRouter {
    kinds: BTreeMap<u16, Arc<dyn Service>>,
}

impl KindRouter {
    /// Adds the service of one kind of frame; it replaces an earlier one.
    #[must_use]
    pub fn with(mut self, kind: u16, service: Arc<dyn Service>) -> Self {
        self.kinds.insert(kind, service);
        self
    }
}

impl Service for KindRouter {
    fn call(self: Arc<Self>, from: NodeId, request: Bytes) -> BoxFuture<'static, Result<Bytes, Refusal>> {
        Box::pin(async move {
            let (kind, _) = frame::open(&request).map_err(|error| Refusal(error.to_string()))?;
            let service = self.kinds.get(&kind).cloned();
            service
                .ok_or_else(|| Refusal(format!("nobody answers frames of kind {kind} here")))?
                .call(from, request)
                .await
        })
    }

    fn channel(self: Arc<Self>, _: NodeId, channel: Channel) -> BoxFuture<'static, ()> {
        drop(channel);
        Box::pin(std::future::ready(()))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    struct Echo;

    impl Service for Echo {
        fn call(self: Arc<Self>, _: NodeId, request: Bytes) -> BoxFuture<'static, Result<Bytes, Refusal>> {
            Box::pin(std::future::ready(Ok(request)))
        }
    }

    #[test]
    fn a_class_is_refused_until_it_is_registered_and_registered_once() {
        let router = Router::new();
        assert!(router.service(Class::Raft).is_err());
        assert!(router.register(Class::Raft, Arc::new(Echo)));
        assert!(!router.register(Class::Raft, Arc::new(Echo)));
        assert!(router.service(Class::Raft).is_ok());
        assert!(router.service(Class::Lease).is_err());
    }

    #[tokio::test]
    async fn control_frames_go_to_the_service_of_their_kind() {
        let router = Arc::new(KindRouter::default().with(7, Arc::new(Echo)));
        let known = frame::encode_payload(7, b"x");
        assert_eq!(router.clone().call(NodeId(1), known.clone()).await.unwrap(), known);
        for bad in [
            frame::encode_payload(8, b"x"),
            Bytes::from_static(b"rubbish"),
            Bytes::new(),
        ] {
            assert!(router.clone().call(NodeId(1), bad).await.is_err());
        }
    }
}
