//! The front door's promises, on real sockets. Time limits are short settings here; nothing waits for a fixed time.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::{AcceptLimits, BodyError, RequestBody, ServeReport, bind, serve};

/// Far beyond every limit of these tests, far below a hang.
const PATIENCE: Duration = Duration::from_secs(20);

struct House {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    served: JoinHandle<ServeReport>,
    /// A request to `/hold` has begun.
    held: Arc<Notify>,
    /// The service of a request to `/hold` was dropped unfinished.
    left: Arc<Notify>,
    release: Arc<Notify>,
}

struct OnDrop(Arc<Notify>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

fn quick() -> AcceptLimits {
    AcceptLimits {
        header_timeout: Duration::from_millis(300),
        idle_timeout: Duration::from_millis(900),
        body_stall: Duration::from_millis(300),
        body_timeout: Duration::from_millis(900),
        write_stall: Duration::from_millis(300),
        linger: Duration::from_millis(500),
        drain: Duration::from_millis(700),
        ..AcceptLimits::default()
    }
}

fn open(limits: AcceptLimits) -> House {
    let listener = bind("127.0.0.1:0".parse().expect("an address")).expect("a free port");
    let address = listener.local_addr().expect("bound");
    let (stop, stopped) = oneshot::channel();
    let (held, left, release) =
        (Arc::new(Notify::new()), Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (held_, left_, release_) = (held.clone(), left.clone(), release.clone());
    let service = tower::service_fn(move |request: Request<RequestBody>| {
        let (held, left, release) = (held_.clone(), left_.clone(), release_.clone());
        async move { Ok::<_, Infallible>(answer(request, &held, left, &release).await) }
    });
    let served = tokio::spawn(serve(listener, service, limits, async {
        let _ = stopped.await;
    }));
    House { address, stop: Some(stop), served, held, left, release }
}

/// `/hold` waits for a release, `/early` answers without reading, `/big` answers 64 MiB, all else echoes the length.
async fn answer(
    request: Request<RequestBody>,
    held: &Notify,
    left: Arc<Notify>,
    release: &Notify,
) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    match request.uri().path() {
        "/hold" => {
            let on_drop = OnDrop(left);
            held.notify_one();
            release.notified().await;
            std::mem::forget(on_drop);
        }
        "/early" => *response.status_mut() = StatusCode::PAYLOAD_TOO_LARGE,
        "/big" => *response.body_mut() = Full::from(vec![b'x'; 64 << 20]),
        _ => match request.into_body().collect().await {
            Ok(body) => *response.body_mut() = Full::from(body.to_bytes().len().to_string()),
            Err(BodyError::Timeout) => *response.status_mut() = StatusCode::REQUEST_TIMEOUT,
            Err(BodyError::Broken(_)) => *response.status_mut() = StatusCode::BAD_REQUEST,
        },
    }
    response
}

impl House {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.expect("connects")
    }

    /// Sends `text` on a new connection and reads until the server closes.
    async fn exchange(&self, text: &str) -> String {
        let mut client = self.connect().await;
        client.write_all(text.as_bytes()).await.expect("sends");
        read_all(&mut client).await
    }

    async fn stop(mut self) -> ServeReport {
        let _ = self.stop.take().expect("not stopped yet").send(());
        timeout(PATIENCE, self.served).await.expect("ends in time").expect("no panic")
    }
}

async fn read_all(client: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    // A reset after the last byte is as good as an end here; what came before it is what counts.
    let _ = timeout(PATIENCE, client.read_to_end(&mut bytes)).await.expect("the server closes");
    String::from_utf8(bytes).expect("text")
}

async fn read_until(client: &mut TcpStream, end: &str) -> String {
    let mut text = String::new();
    while !text.ends_with(end) {
        let byte = timeout(PATIENCE, client.read_u8()).await.expect("in time").expect("a byte");
        text.push(char::from(byte));
    }
    text
}

#[tokio::test]
async fn a_connection_serves_many_requests() {
    let house = open(quick());
    let mut client = house.connect().await;
    for length in [0, 5] {
        let head = format!("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n");
        client.write_all(head.as_bytes()).await.expect("sends");
        client.write_all("x".repeat(length).as_bytes()).await.expect("sends");
        let reply = read_until(&mut client, &format!("\r\n\r\n{length}")).await;
        assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
    }
    assert_eq!(house.stop().await, ServeReport { accepted: 1, cut: 0 });
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let house = open(quick());
    let one = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc";
    let reply = house
        .exchange(&format!(
            "{one}GET / HTTP/1.1\r\nHost: h\r\n\r\n{one}GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
        ))
        .await;
    let bodies: Vec<&str> = reply.split("\r\n\r\n").skip(1).map(|part| &part[..1]).collect();
    assert_eq!(bodies, ["3", "0", "3", "0"], "{reply}");
}

#[tokio::test]
async fn silent_and_slow_clients_are_closed() {
    let house = open(quick());
    assert_eq!(house.exchange("").await, "", "a silent client");
    assert_eq!(house.exchange("GET / HTTP/1.1\r\nHos").await, "", "an unfinished head");
    let mut client = house.connect().await;
    let began = Instant::now();
    // One byte at a time, each well within the limit: the head as a whole is not.
    while began.elapsed() < PATIENCE && client.write_all(b"a").await.is_ok() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(began.elapsed() < PATIENCE, "a trickling head was kept open");
}

#[tokio::test]
async fn an_idle_connection_is_closed_later_than_a_new_one() {
    let limits = quick();
    let house = open(limits.clone());
    let mut client = house.connect().await;
    client.write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").await.expect("sends");
    let began = Instant::now();
    assert!(read_all(&mut client).await.starts_with("HTTP/1.1 200"));
    assert!(began.elapsed() >= limits.idle_timeout - Duration::from_millis(50));
}

#[tokio::test]
async fn a_slow_body_is_answered_408() {
    let house = open(quick());
    let reply = house.exchange("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nabc").await;
    assert!(reply.starts_with("HTTP/1.1 408"), "{reply}");

    let mut client = house.connect().await;
    let head = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n";
    client.write_all(head.as_bytes()).await.expect("sends");
    let began = Instant::now();
    // Never a pause, and still too slow as a whole.
    while began.elapsed() < PATIENCE && client.write_all(b"a").await.is_ok() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(began.elapsed() < PATIENCE, "a trickling body was kept open");
}

#[tokio::test]
async fn ambiguous_framing_is_refused() {
    let house = open(quick());
    let chunks = "0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n";
    for headers in [
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 5",
        "Content-Length: 5\r\nContent-Length: 5",
    ] {
        let request = format!("POST / HTTP/1.1\r\nHost: h\r\n{headers}\r\n\r\n{chunks}");
        // As the first request, and pipelined behind an innocent one.
        for before in ["", "GET / HTTP/1.1\r\nHost: h\r\n\r\n"] {
            let reply = house.exchange(&format!("{before}{request}")).await;
            let statuses: Vec<&str> =
                reply.match_indices("HTTP/1.1 ").map(|(at, _)| &reply[at + 9..at + 12]).collect();
            let expected = if before.is_empty() { vec!["400"] } else { vec!["200", "400"] };
            assert_eq!(statuses, expected, "{headers:?}: {reply}");
            assert!(reply.contains("invalid_request_error"), "{reply}");
        }
    }
}

#[tokio::test]
async fn a_host_is_needed_once() {
    let house = open(quick());
    for (head, status) in [
        ("GET / HTTP/1.1\r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\nHost:  \r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "400"),
        ("GET / HTTP/1.0\r\n\r\n", "200"),
    ] {
        let reply = house.exchange(head).await;
        assert_eq!(&reply[9..12], status, "{head:?}: {reply}");
    }
}

#[tokio::test]
async fn heads_have_limits() {
    let house = open(AcceptLimits { target_bytes: 100, header_bytes: 8192, ..quick() });
    let target = "a".repeat(200);
    let reply = house.exchange(&format!("GET /{target} HTTP/1.1\r\nHost: h\r\n\r\n")).await;
    assert!(reply.starts_with("HTTP/1.1 414"), "{reply}");
    let fields = (0..101).fold(String::new(), |all, n| all + &format!("x-{n}: 1\r\n"));
    let reply = house.exchange(&format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n")).await;
    assert!(reply.starts_with("HTTP/1.1 431"), "{reply}");
    let long = "v".repeat(9000);
    let reply = house.exchange(&format!("GET / HTTP/1.1\r\nHost: h\r\nx: {long}\r\n\r\n")).await;
    assert!(reply.starts_with("HTTP/1.1 431"), "{reply}");
}

#[tokio::test]
async fn a_chunked_body_is_read_and_ends_the_connection() {
    let house = open(quick());
    let reply = house
        .exchange(
            "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        )
        .await;
    assert!(reply.contains("connection: close") && reply.ends_with("\r\n\r\n3"), "{reply}");
}

#[tokio::test]
async fn a_refusal_arrives_although_the_upload_goes_on() {
    let house = open(quick());
    let mut client = house.connect().await;
    let head = "POST /early HTTP/1.1\r\nHost: h\r\nContent-Length: 8000000\r\n\r\n";
    client.write_all(head.as_bytes()).await.expect("sends");
    client.write_all(&vec![0; 8_000_000]).await.expect("the upload is not reset");
    assert!(read_all(&mut client).await.starts_with("HTTP/1.1 413"));
}

#[tokio::test]
async fn a_reader_that_stops_is_cut() {
    let house = open(quick());
    let mut client = house.connect().await;
    client.write_all(b"GET /big HTTP/1.1\r\nHost: h\r\n\r\n").await.expect("sends");
    read_until(&mut client, "\r\n\r\n").await;
    // No more is read until the server has given up and all its tasks are gone.
    let report = house.stop().await;
    assert_eq!(report, ServeReport { accepted: 1, cut: 0 });
    assert!(read_all(&mut client).await.len() < 64 << 20);
}

#[tokio::test]
async fn a_long_answer_is_not_idleness_and_a_drain_waits_for_it() {
    let house = open(AcceptLimits { drain: PATIENCE, ..quick() });
    let mut client = house.connect().await;
    client.write_all(b"GET /hold HTTP/1.1\r\nHost: h\r\n\r\n").await.expect("sends");
    house.held.notified().await;
    let idle = house.exchange("").await;
    assert_eq!(idle, "", "meanwhile a silent connection has come and timed out");
    let release = house.release.clone();
    let address = house.address;
    let stopping = tokio::spawn(house.stop());
    // The listener is gone before the running request ends.
    while TcpStream::connect(address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    release.notify_one();
    let reply = read_all(&mut client).await;
    assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
    assert_eq!(stopping.await.expect("no panic").cut, 0);
}

#[tokio::test]
async fn a_drain_ends_at_its_limit() {
    let house = open(quick());
    let mut client = house.connect().await;
    client.write_all(b"GET /hold HTTP/1.1\r\nHost: h\r\n\r\n").await.expect("sends");
    house.held.notified().await;
    assert_eq!(house.stop().await.cut, 1);
    assert_eq!(read_all(&mut client).await, "");
}

#[tokio::test]
async fn a_client_that_leaves_ends_its_request() {
    let house = open(quick());
    let mut client = house.connect().await;
    client.write_all(b"GET /hold HTTP/1.1\r\nHost: h\r\n\r\n").await.expect("sends");
    house.held.notified().await;
    drop(client);
    timeout(PATIENCE, house.left.notified()).await.expect("the service is dropped");
}

#[tokio::test]
async fn idle_connections_make_room_for_new_ones() {
    let house = open(AcceptLimits {
        connections: 2,
        header_timeout: PATIENCE * 3,
        idle_timeout: PATIENCE * 3,
        ..quick()
    });
    let mut idle = Vec::new();
    for _ in 0..2 {
        let mut client = house.connect().await;
        client.write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").await.expect("sends");
        read_until(&mut client, "\r\n\r\n0").await;
        idle.push(client);
    }
    let reply = house.exchange("GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").await;
    assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
}
