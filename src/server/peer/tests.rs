use super::*;
use crate::{Budget, ShutdownCoordinator, signal};

#[tokio::test]
async fn a_peer_is_busy_until_its_answer_is_flushed() {
    let mut shutdown = ShutdownCoordinator::new(Budget::default(), signal::none()).unwrap();
    let gate = shutdown.gate("http");
    let peer = Peer::new(gate.enter().unwrap(), gate, shutdown.handle(), None, None);
    assert_eq!(peer.state(), State::Idle);
    peer.hear(false);
    assert_eq!(peer.state(), State::Head);
    let mut turn = peer.begin();
    assert_eq!(peer.state(), State::Request);
    turn.answer(false);
    assert_eq!(peer.state(), State::Body);
    drop(turn);
    assert_eq!(peer.state(), State::Body, "the last bytes are not out yet");
    peer.flushed();
    assert_eq!(peer.state(), State::Idle);
    peer.close(Closing::Idle);
    peer.hear(false);
    assert_eq!(peer.closing(), Closing::No, "a request that came at the last moment is served");
}

#[tokio::test]
async fn the_rest_of_an_unread_body_is_not_taken_for_a_head() {
    let mut shutdown = ShutdownCoordinator::new(Budget::default(), signal::none()).unwrap();
    let gate = shutdown.gate("http");
    let peer = Peer::new(gate.enter().unwrap(), gate, shutdown.handle(), None, None);
    peer.hear(false);
    let turn = peer.begin();
    peer.open_body();
    drop(turn);
    peer.flushed();
    assert_eq!(peer.state(), State::Request, "somebody still reads the request");
    peer.close_body();
    assert_eq!(peer.state(), State::Idle);
    assert!(peer.may_be_sending());
    peer.hear(false);
    assert_eq!(peer.state(), State::Idle, "that was its rest");
    peer.hear(false);
    assert_eq!(peer.state(), State::Head);
    drop(peer.begin());
    peer.flushed();
    assert!(!peer.may_be_sending());
}

#[tokio::test]
async fn what_follows_a_request_that_has_come_whole_is_a_head() {
    let mut shutdown = ShutdownCoordinator::new(Budget::default(), signal::none()).unwrap();
    let gate = shutdown.gate("http");
    let peer = Peer::new(gate.enter().unwrap(), gate, shutdown.handle(), None, None);
    for (with_it, after_it, state) in
        [(false, None, State::Idle), (true, None, State::Head), (false, Some(true), State::Head)]
    {
        peer.hear(with_it);
        let turn = peer.begin();
        peer.no_more();
        if let Some(open) = after_it {
            peer.hear(open);
        }
        assert_eq!(peer.state(), State::Request);
        drop(turn);
        peer.flushed();
        assert_eq!(peer.state(), state);
    }
}
