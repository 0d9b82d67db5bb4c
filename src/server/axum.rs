//! Serves an axum router.

use std::borrow::Cow;

use ::axum::Router;
use ::axum::extract::FromRequestParts;
use ::axum::response::IntoResponse;
use ::axum::routing::get;
use http::StatusCode;
use http::request::Parts;

use super::{Listener, RequestCx, Server, probe};
use crate::Readiness;

/// Serves a router on a listener; as [`serve`](super::serve), whose promises hold.
///
/// ```no_run
/// # async fn example(shutdown: &mut winddown::ShutdownCoordinator) -> std::io::Result<()> {
/// use axum::{Router, routing::get};
/// use winddown::server;
///
/// let listener = tokio::net::TcpListener::bind("127.0.0.1:8080").await?;
/// let app = Router::new()
///     .route("/", get(async || "hello"))
///     .merge(server::axum::probes(shutdown.readiness()));
/// shutdown.add(server::axum::serve("http", listener, app));
/// # Ok(()) }
/// ```
pub fn serve(
    name: impl Into<Cow<'static, str>>,
    listener: impl Into<Listener>,
    router: Router,
) -> Server<Router> {
    super::serve(name, listener, router)
}

/// `/livez` and `/readyz`, to be merged into a router; see [`probe`] for what they answer.
pub fn probes<S: Clone + Send + Sync + 'static>(readiness: Readiness) -> Router<S> {
    let answer = |path: &'static str| {
        let readiness = readiness.clone();
        get(async move || probe(&readiness, path).map(IntoResponse::into_response).unwrap_or_default())
    };
    Router::new().route("/livez", answer("/livez")).route("/readyz", answer("/readyz"))
}

impl<S: Sync> FromRequestParts<S> for RequestCx {
    /// 500: the program was put together wrongly, and the sentence says what is missing.
    type Rejection = (StatusCode, &'static str);

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        parts.extensions.get().cloned().ok_or((
            StatusCode::INTERNAL_SERVER_ERROR,
            "no RequestCx in this request: serve the router with winddown::server::axum::serve, or add the layer of winddown::server::tower\n",
        ))
    }
}
