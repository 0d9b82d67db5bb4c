//! Names, servers, users and keys: what a queue is opened on, and what is refused.

use super::sentinel::Watched;
use super::*;

#[tokio::test]
async fn a_name_that_is_no_plain_name_is_refused_with_the_rule() {
    let redis = Redis::start();
    for name in ["", "a b", "{a}", "a:b", "ä", "a\n", &"n".repeat(65)] {
        let refused = Jobs::open(at(&redis), name).await.unwrap_err();
        assert!(matches!(refused, OpenError::BadName(_)), "{name:?}: {refused}");
        let rule = "cannot name a queue: letters, digits, '.', '_' and '-' (of a stream also ':'), at least 1 and at most 64";
        assert!(refused.to_string().ends_with(rule), "{refused}");
    }
    open(&redis, &format!("A.b_c-9{}", "n".repeat(57))).await;
    assert_eq!(keys(&redis).await.len(), 1);
}

#[test]
fn a_url_that_is_none_of_a_redis_is_refused_and_its_password_not_repeated() {
    for (url, why) in [
        ("http://:hunter2@host", "redis+sentinel://): it begins with none of these"),
        ("redis://:hunter2@host/x", "database number"),
        ("redis+sentinel://:hunter2@host", "which master"),
        ("redis+sentinel://:hunter2@host:26379/", "which master"),
        ("redis+sentinel://:hunter2@host:1,/m", "no host"),
        ("redis+sentinel://:hunter2@host:x1/m", "no port of a sentinel"),
        ("redis+sentinel://:hunter2@host/m/x", "database number"),
        ("hunter2", "it begins with none of these"),
        ("rediss://:hunter2@host", "TLS is a feature of the crate redis"),
    ] {
        let refused = Server::at(url).unwrap_err().to_string();
        assert!(refused.contains(why) && !refused.contains("hunter2"), "{url}: {refused}");
        assert!(refused.starts_with("the URL is none of a Redis (redis://, "), "{refused}");
    }
    for url in ["redis://u:hunter2@host:1/2", "redis+sentinel://u:hunter2@[::1]:1,b/m/2", "redis+unix:///a"] {
        let server = format!("{:?}", Server::at(url).unwrap());
        assert!(!server.contains("hunter2"), "{server}");
    }
    let server = format!("{:?}", Server::at("redis+sentinel://[::1],[::2]:7,b:8,c/m").unwrap());
    assert!(server.contains("master m of the sentinels ::1:26379, ::2:7, b:8, c:26379"), "{server}");
}

#[tokio::test]
async fn keys_of_somebody_else_are_left_alone_and_named() {
    let redis = Redis::start();
    let refused = async |name: &str| Jobs::open(at(&redis), name).await.unwrap_err().to_string();
    let () = run(&redis, &["SET", "{a}:pending", "mine"]).await;
    assert_eq!(refused("a").await, "key {a}:pending is not a queue's: it is a string, and should be a list");
    let _: i64 = run(&redis, &["RPUSH", "{b}:pending", "mine"]).await;
    assert_eq!(
        refused("b").await,
        "key {b}:pending is not a queue's: it is there, and no key says of which layout it is"
    );
    let () = run(&redis, &["SET", "{c}:layout", "something else"]).await;
    assert_eq!(
        refused("c").await,
        "key {c}:layout is not a queue's: it says \"something else\", and should say \"winddown list 1\""
    );
    let () = run(&redis, &["SET", "{d}:layout", "winddown stream 1"]).await;
    assert!(refused("d").await.contains("should say \"winddown list 1\""));
    for (layout, found) in [("winddown list 0", 0), ("winddown list 2", 2)] {
        let () = run(&redis, &["SET", "{e}:layout", layout]).await;
        let said = format!("key {{e}}:layout says layout {found}, and this version needs layout 1");
        assert_eq!(refused("e").await, said);
    }
    assert_eq!(keys(&redis).await, ["{a}:pending", "{b}:pending", "{c}:layout", "{d}:layout", "{e}:layout"]);
}

#[tokio::test]
async fn a_server_that_is_not_there_is_an_error_and_no_panic() {
    let mut redis = Redis::start();
    let server = at(&redis);
    redis.kill();
    let refused = Jobs::open(server, "a").await.unwrap_err();
    assert!(matches!(refused, OpenError::Server(_)), "{refused:?}");
    assert_eq!(refused.to_string(), "could not open the queue");
    // Which one, too: the system's own words do not say that.
    assert!(why(&refused).starts_with(&format!("{}: ", redis.socket().display())), "{}", why(&refused));
    let watched = Server::at("redis+sentinel://:hunter2@127.0.0.1:1,127.0.0.1:2/orders").unwrap();
    let refused = Jobs::open(watched, "a").await.unwrap_err();
    let start = "master orders of the sentinels 127.0.0.1:1, 127.0.0.1:2: ";
    assert!(why(&refused).starts_with(start), "{}", why(&refused));
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_named_with_the_time_it_had() {
    let redis = Redis::start();
    let jobs = open(&redis, "a").await;
    let () = run(&redis, &["CLIENT", "PAUSE", "60000", "WRITE"]).await;
    let error = jobs.enqueue(&job("a")).await.unwrap_err();
    assert_eq!(why(&error), format!("{} did not answer within 5 s", redis.socket().display()));
}

#[tokio::test]
async fn a_user_that_may_not_is_told_what_it_lacks() {
    let redis = Redis::start();
    let () = run(&redis, &["ACL", "SETUSER", "w", "on", ">w", "~{a}:*", "+@all"]).await;
    let () = run(&redis, &["ACL", "SETUSER", "v", "on", ">v", "~*", "+info"]).await;
    for (login, lacks) in [
        ("user=w&pass=w", "no permissions to access one of the keys"),
        ("user=v&pass=v", "no permissions to run the 'evalsha' command"),
        ("user=v&pass=wrong", "authentication failed"),
    ] {
        let server = Server::at(&format!("{}?{login}", redis.url())).unwrap();
        let refused = Jobs::open(server, "b").await.unwrap_err();
        assert!(why(&refused).contains(lacks), "{login}: {}", why(&refused));
    }
}

#[tokio::test]
async fn a_server_is_found_by_the_sentinels_that_watch_it() {
    let watched = Watched::start().await;
    // The first Sentinel is not there.
    let url = watched.url().replace("//", "//127.0.0.1:1,").replace("/crew/0", "/crew/3");
    let jobs = Jobs::open(Server::at(&url).unwrap(), "orders").await.unwrap();
    jobs.enqueue(&job("a")).await.unwrap();
    timeout(SOON, jobs.ready()).await.unwrap();
    assert_eq!(names(&claim(&jobs, "one", 1).await), ["a"]);
    let keyspace: String = run(&watched.master, &["INFO", "keyspace"]).await;
    assert!(keyspace.contains("db3:") && !keyspace.contains("db0:"), "{keyspace}");
    // Name and password are those of the master.
    let () = run(&watched.master, &["ACL", "SETUSER", "w", "on", ">w", "~{a}:*", "+@all"]).await;
    let login = Server::at(&url.replace("//", "//w:w@")).unwrap();
    Jobs::open(login.clone(), "a").await.unwrap();
    let refused = Jobs::open(login, "b").await.unwrap_err();
    assert!(why(&refused).contains("no permissions to access one of the keys"), "{}", why(&refused));
    let unknown = Server::at(&url.replace("/crew", "/others")).unwrap();
    let error = Jobs::open(unknown, "orders").await.unwrap_err();
    assert!(why(&error).contains("does not know the master"), "{}", why(&error));
}

#[tokio::test]
async fn settings_that_put_jobs_at_risk_are_named() {
    let redis = Redis::start_with(&["--maxmemory-policy", "allkeys-lru", "--save", "", "--appendonly", "no"]);
    let warnings = open(&redis, "a").await.warnings().await.unwrap();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings[0].starts_with("maxmemory-policy is allkeys-lru: jobs are lost when"), "{warnings:?}");
    assert!(warnings[1].starts_with("appendonly is no and save is empty: all jobs"), "{warnings:?}");
    let redis = Redis::start_with(&["--maxmemory-policy", "volatile-lru", "--save", "60 1000"]);
    let warnings = open(&redis, "a").await.warnings().await.unwrap();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("since the last snapshot (save 60 1000)"), "{warnings:?}");
    let redis = Redis::start_with(&["--appendonly", "yes"]);
    assert!(open(&redis, "a").await.warnings().await.unwrap().is_empty());
    // By the newer protocol, too, which has other words for a list of pairs.
    let redis = Redis::start_with(&["--save", "", "--appendonly", "no"]);
    let server = Server::at(&format!("{}?protocol=resp3", redis.url())).unwrap();
    let warnings = Jobs::open(server, "a").await.unwrap().warnings().await.unwrap();
    assert!(warnings[0].starts_with("appendonly is no and save is empty: all jobs"), "{warnings:?}");
}

#[tokio::test]
async fn the_keys_and_commands_that_are_documented_are_all_that_a_user_needs() {
    let redis = Redis::start();
    let user = [
        "ACL",
        "SETUSER",
        "worker",
        "on",
        ">secret",
        "~{orders}:*",
        "-@all",
        "+@hash",
        "+@list",
        "+@set",
        "+@sortedset",
        "+@string",
        "+evalsha",
        "+eval",
        "+exists",
        "+type",
        "+del",
        "+scan",
        "+time",
        "+info",
        "+client|id",
        "+client|unblock",
    ];
    let () = run(&redis, &user).await;
    let url = format!("{}?user=worker&pass=secret", redis.url());
    let jobs = Jobs::open(Server::at(&url).unwrap(), "orders").await.unwrap();
    assert!(Jobs::open(Server::at(&url).unwrap(), "other").await.is_err());
    jobs.enqueue_once(&[job("a"), job("b").delay(secs(60)), job("c").priority(1)]).await.unwrap();
    timeout(SOON, jobs.ready()).await.unwrap();
    let held = claim(&jobs, "one", 9).await;
    assert_eq!(names(&held), ["c", "a"]);
    let _ = jobs.requeue(&[HandBack::interrupted(held[0].lease.clone())]).await.unwrap();
    let _ = jobs.nack(&held[1].lease, Duration::ZERO, "no").await.unwrap();
    let held = claim(&jobs, "one", 9).await;
    let _ = jobs.extend(&leases(&held), LEASE).await.unwrap();
    let _ = jobs.dead_letter(&held[0].lease, "no").await.unwrap();
    assert_eq!(jobs.dead_letters(9).await.unwrap().len(), 1);
    assert!(jobs.retry(&held[0].lease.id).await.unwrap());
    jobs.find(&id("a")).await.unwrap();
    jobs.counts().await.unwrap();
    jobs.pause().await.unwrap();
    jobs.is_paused().await.unwrap();
    jobs.resume().await.unwrap();
    jobs.begin_drain(&owner("one"), Some(secs(1))).await.unwrap();
    jobs.end_drain(&owner("one")).await.unwrap();
    jobs.forget_once(&[id("a")]).await.unwrap();
    jobs.warnings().await.unwrap();
    timeout(SOON, jobs.stop_waiting()).await.unwrap();
}

/// Answers each command by what it says; to what it does not know it says that all is well. Counts who connects.
async fn fake(answer: impl Fn(&str) -> Option<String> + Send + Sync + 'static) -> (String, Arc<AtomicUsize>) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (answer, came) = (Arc::new(answer), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&came);
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            count.fetch_add(1, Ordering::SeqCst);
            let answer = Arc::clone(&answer);
            tokio::spawn(async move {
                let mut asked = vec![0; 64 * 1024];
                while let Ok(count @ 1..) = client.read(&mut asked).await {
                    let asked = String::from_utf8_lossy(&asked[..count]).into_owned();
                    let pipelined = asked.lines().filter(|line| line.starts_with('*')).count();
                    let answer = answer(&asked).unwrap_or_else(|| "+OK\r\n".repeat(pipelined));
                    if client.write_all(answer.as_bytes()).await.is_err() {
                        break;
                    }
                }
            });
        }
    });
    (address, came)
}

fn info(asked: &str, info: &str) -> Option<String> {
    asked.contains("\r\nINFO\r\n").then(|| format!("${}\r\n{info}\r\n", info.len()))
}

#[tokio::test]
async fn a_server_that_is_too_old_is_refused_before_it_is_asked_for_anything() {
    let (old, _) =
        fake(|asked| info(asked, "# Server\r\nredis_version:6.2.14\r\nredis_mode:standalone\r\n")).await;
    let refused = Jobs::open(Server::at(&format!("redis://{old}")).unwrap(), "a").await.unwrap_err();
    assert!(matches!(&refused, OpenError::Version { found, needed: 7 } if found == "6.2.14"), "{refused:?}");
    assert_eq!(refused.to_string(), "the server is Redis 6.2.14, and the queue needs 7 or later");
    // One that says nothing of it, or is no Redis by name, is asked.
    for says in ["redis_version:70.0.1\r\n", "redis_version:next\r\n", "# Server\r\n"] {
        let (server, _) = fake(move |asked| info(asked, says)).await;
        let refused = Jobs::open(Server::at(&format!("redis://{server}")).unwrap(), "a").await.unwrap_err();
        assert!(matches!(refused, OpenError::Server(_)), "{says}: {refused:?}");
    }
    // One that does not let us ask, too.
    let redis = Redis::start();
    let () = run(&redis, &["ACL", "SETUSER", "w", "on", ">w", "~*", "+@all", "-info"]).await;
    Jobs::open(Server::at(&format!("{}?user=w&pass=w", redis.url())).unwrap(), "a").await.unwrap();
}

#[tokio::test]
async fn where_the_server_is_not_the_one_to_ask_the_next_call_looks_anew_and_else_it_does_not() {
    for (error, anew) in [
        ("-READONLY You can't write against a read only replica.", true),
        ("-LOADING Redis is loading the dataset in memory", true),
        ("-MASTERDOWN Link with MASTER is down", true),
        ("-CLUSTERDOWN The cluster is down", true),
        ("?what", true),
        ("-OOM command not allowed when used memory > 'maxmemory'.", false),
        ("-NOREPLICAS Not enough good replicas to write.", false),
        ("-NOPERM this user has no permissions", false),
        ("-ERR of another kind", false),
    ] {
        let open = Arc::new(AtomicUsize::new(0));
        let opened = Arc::clone(&open);
        let (server, came) = fake(move |asked| {
            let scripted = asked.contains("EVALSHA").then(|| match opened.load(Ordering::SeqCst) {
                0 => "*2\r\n$6\r\nlayout\r\n$15\r\nwinddown list 1\r\n".to_owned(),
                _ => format!("{error}\r\n"),
            });
            let time = asked.contains("\r\nTIME\r\n").then(|| "*2\r\n$1\r\n1\r\n$1\r\n1\r\n".to_owned());
            scripted.or(time).or_else(|| info(asked, "redis_version:7.0.0\r\n"))
        })
        .await;
        let jobs = Jobs::open(Server::at(&format!("redis://{server}")).unwrap(), "a").await.unwrap();
        open.store(1, Ordering::SeqCst);
        assert_eq!(came.load(Ordering::SeqCst), 1);
        for calls in 1..3 {
            jobs.counts().await.unwrap_err();
            assert_eq!(came.load(Ordering::SeqCst), if anew { calls } else { 1 }, "{error}");
        }
    }
}

#[tokio::test]
async fn what_is_asked_at_once_is_asked_over_one_connection() {
    let redis = Redis::start();
    let line = Proxy::to(&redis.socket()).await;
    let jobs = Jobs::open(Server::at(&line.url()).unwrap(), "a").await.unwrap();
    line.cut();
    while jobs.counts().await.is_ok() {}
    let before = line.calls();
    let all = futures_util::future::join_all((0..50).map(|_| jobs.counts())).await;
    assert!(all.iter().all(Result::is_ok));
    assert_eq!(line.calls(), before + 1);
}

#[tokio::test]
async fn what_a_stop_calls_is_known_to_the_server_before() {
    let redis = Redis::start();
    let jobs = open(&redis, "a").await;
    jobs.enqueue(&job("a")).await.unwrap();
    let held = leases(&claim(&jobs, "one", 1).await);
    let before = calls(&redis, "eval").await.0;
    jobs.begin_drain(&owner("one"), None).await.unwrap();
    let _ = jobs.extend(&held, LEASE).await.unwrap();
    let _ = jobs.ack(&[]).await.unwrap();
    let _ = jobs.requeue(&[HandBack::interrupted(held[0].clone())]).await.unwrap();
    assert_eq!(calls(&redis, "eval").await.0, before, "a call that needs a second way there and back");
}

#[tokio::test]
async fn a_server_that_never_answers_is_given_up_after_4_s_and_such_a_sentinel_after_one() {
    let deaf = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let at = deaf.local_addr().unwrap();
    let began = Instant::now();
    let refused = Jobs::open(Server::at(&format!("redis://{at}")).unwrap(), "a").await.unwrap_err();
    assert!(why(&refused).starts_with(&at.to_string()), "{}", why(&refused));
    assert!(began.elapsed() < secs(10), "{:?}", began.elapsed());
    let watched = Watched::start().await;
    let url = watched.url().replace("//", &format!("//{at},"));
    Jobs::open(Server::at(&url).unwrap(), "a").await.unwrap();
}

#[tokio::test]
async fn a_server_that_the_sentinels_name_and_that_is_not_the_master_is_not_asked() {
    let watched = Watched::start().await;
    let server: String = run(&watched.replica, &["INFO", "server"]).await;
    let port = server.lines().find_map(|line| line.strip_prefix("tcp_port:")).unwrap().trim().to_owned();
    let (stale, _) = fake(move |asked| {
        let found = format!("*2\r\n$9\r\n127.0.0.1\r\n${}\r\n{port}\r\n", port.len());
        asked.contains("GET-MASTER-ADDR-BY-NAME").then_some(found)
    })
    .await;
    let refused = Jobs::open(Server::at(&format!("redis+sentinel://{stale}/crew")).unwrap(), "a").await;
    let refused = refused.unwrap_err();
    assert!(
        why(&refused).contains("the server that the sentinels name is not the master"),
        "{}",
        why(&refused)
    );
    // Who may not ask a server what it is takes it for the master.
    let () = run(&watched.master, &["ACL", "SETUSER", "w", "on", ">w", "~*", "+@all", "-role"]).await;
    Jobs::open(Server::at(&watched.url().replace("//", "//w:w@")).unwrap(), "a").await.unwrap();
}
