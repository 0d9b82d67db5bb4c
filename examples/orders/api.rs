//! The HTTP side: takes orders and tells of them.

use std::convert::Infallible;

use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::PathRejection;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{StatusCode, header};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post};
use futures_util::{Stream, stream};
use serde_json::json;
use winddown::{BoxError, Phase, ShutdownHandle};

use crate::order::{Order, Status};
use crate::store::{Placed, Store};

const BODY_LIMIT: usize = 64 * 1024;
const ID_LIMIT: usize = 200;

#[derive(Clone)]
struct Api {
    store: Store,
    shutdown: ShutdownHandle,
}

pub fn router(store: Store, shutdown: ShutdownHandle) -> Router {
    Router::new()
        .route("/orders", post(place))
        .route("/orders/{id}", get(show))
        .route("/orders/{id}/events", get(events))
        .route("/orders/{id}/retry", post(retry))
        .route("/stats", get(stats))
        .layer(DefaultBodyLimit::max(BODY_LIMIT))
        .with_state(Api { store, shutdown })
}

async fn place(
    State(api): State<Api>,
    body: Result<Bytes, axum::extract::rejection::BytesRejection>,
) -> Response {
    if intake_has_stopped(&api.shutdown) {
        return unavailable("the service is stopping");
    }
    let body = match body {
        Ok(body) => body,
        Err(rejection) => return (rejection.status(), error(&rejection.body_text())).into_response(),
    };
    let order = match read(&body) {
        Ok(order) => order,
        Err(why) => return (StatusCode::BAD_REQUEST, error(&why)).into_response(),
    };
    match api.store.place(&order).await {
        // It is stored, and nothing else has to be asked for that.
        Ok(Placed::New) => (StatusCode::ACCEPTED, Json(Status::accepted(&order.id))).into_response(),
        Ok(Placed::Known) => tell(StatusCode::OK, &api, &order.id).await,
        Ok(Placed::Taken) => (StatusCode::CONFLICT, error("another order has this id")).into_response(),
        Err(why) => failed(&api, &why),
    }
}

/// While it stops, clients that the kernel had taken for us still come, and are served as those before them.
fn intake_has_stopped(shutdown: &ShutdownHandle) -> bool {
    shutdown.is_stopping() && shutdown.phase() != Some(Phase::StopIntake)
}

async fn show(State(api): State<Api>, id: Result<Path<String>, PathRejection>) -> Response {
    let id = match id {
        Ok(Path(id)) => id,
        Err(rejection) => return (rejection.status(), error(&rejection.body_text())).into_response(),
    };
    tell(StatusCode::OK, &api, &id).await
}

/// Gives a dead order its attempts back. One that is not dead, or not there, has nothing to be retried: 404.
async fn retry(State(api): State<Api>, id: Result<Path<String>, PathRejection>) -> Response {
    if intake_has_stopped(&api.shutdown) {
        return unavailable("the service is stopping");
    }
    let id = match id {
        Ok(Path(id)) => id,
        Err(rejection) => return (rejection.status(), error(&rejection.body_text())).into_response(),
    };
    match api.store.retry(&id).await {
        Ok(true) => tell(StatusCode::ACCEPTED, &api, &id).await,
        Ok(false) => {
            (StatusCode::NOT_FOUND, error(&format!("there is no dead order {id:?}"))).into_response()
        }
        Err(why) => failed(&api, &why),
    }
}

async fn stats(State(api): State<Api>) -> Response {
    match api.store.stats().await {
        Ok(stats) => Json(stats).into_response(),
        Err(why) => failed(&api, &why),
    }
}

async fn events(State(api): State<Api>, id: Result<Path<String>, PathRejection>) -> Response {
    let id = match id {
        Ok(Path(id)) => id,
        Err(rejection) => return (rejection.status(), error(&rejection.body_text())).into_response(),
    };
    match api.store.status(&id).await {
        Ok(Some(_)) => Sse::new(changes(api, id)).into_response(),
        Ok(None) => unknown(&id),
        Err(why) => failed(&api, &why),
    }
}

/// One event per change, the first with the state as it is; ends when the order does, and when intake stops.
fn changes(api: Api, id: String) -> impl Stream<Item = Result<Event, Infallible>> {
    // This process hears nothing of what other processes do, and of a failed attempt only that it began.
    const LOOK_AGAIN: std::time::Duration = std::time::Duration::from_millis(250);
    let hears = api.store.changes();
    stream::unfold((api, id, hears, None::<Status>), |(api, id, mut hears, last)| async move {
        if last.as_ref().is_some_and(|last| matches!(last.state, "done" | "dead")) {
            return None;
        }
        loop {
            hears.mark_unchanged();
            let now = match api.store.status(&id).await {
                Ok(Some(now)) => now,
                Ok(None) => return None,
                Err(why) => {
                    tracing::error!(order = id, error = %why, "the order cannot be read");
                    return None;
                }
            };
            if last.as_ref() != Some(&now) {
                let event = Event::default().json_data(&now).unwrap_or_default();
                return Some((Ok(event), (api, id, hears, Some(now))));
            }
            tokio::select! {
                biased;
                () = api.shutdown.stopping() => return None,
                _ = hears.changed() => {}
                () = tokio::time::sleep(LOOK_AGAIN) => {}
            }
        }
    })
}

fn read(body: &[u8]) -> Result<Order, String> {
    let order: Order = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    if order.id.is_empty() || order.id.len() > ID_LIMIT {
        return Err(format!("id takes 1 to {ID_LIMIT} bytes, and has {}", order.id.len()));
    }
    if let Err(error) = order.id.parse::<winddown::queue::JobId>() {
        return Err(format!("id: {error}"));
    }
    if order.items.is_empty() {
        return Err("items takes at least one item, and has none".to_owned());
    }
    Ok(order)
}

async fn tell(code: StatusCode, api: &Api, id: &str) -> Response {
    match api.store.status(id).await {
        Ok(Some(status)) => (code, Json(status)).into_response(),
        Ok(None) => unknown(id),
        Err(why) => failed(api, &why),
    }
}

fn error(why: &str) -> Json<serde_json::Value> {
    Json(json!({ "error": why }))
}

fn unknown(id: &str) -> Response {
    (StatusCode::NOT_FOUND, error(&format!("there is no order {id:?}"))).into_response()
}

fn unavailable(why: &str) -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "1")], error(why)).into_response()
}

fn failed(api: &Api, why: &BoxError) -> Response {
    let mut text = why.to_string();
    let mut source = why.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    tracing::error!(error = text, "a request failed");
    if api.store.is_elsewhere(why) {
        return unavailable(&text);
    }
    (StatusCode::INTERNAL_SERVER_ERROR, error(&text)).into_response()
}
