//! Waits with an end, on a machine that may stand still.

use std::time::Duration;

const PIECE: Duration = Duration::from_millis(50);

/// Waits for so long at most, counted in pieces: a time in which the whole process stood still is one of them, and no hang.
///
/// A timer would be over together with it, and seen before what the other tasks have still to do.
pub async fn within<F: Future>(limit: Duration, future: F) -> F::Output {
    let over = async {
        for _ in 0..limit.as_millis() / PIECE.as_millis() {
            tokio::time::sleep(PIECE).await;
        }
    };
    tokio::select! {
        biased;
        output = future => output,
        () = over => panic!("something hangs"),
    }
}
