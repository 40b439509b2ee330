//! The HTTP client of `object_store`: hyper and rustls, as the pool uses them.

use async_trait::async_trait;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame, SizeHint};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
};
use sconce_api::client::{Client, client_for};
use std::io::ErrorKind;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::Sleep;

/// Time for the head of a response to a request without a body.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);

/// Slowest upload, in bytes per second: a request with a body has more time.
const SLOWEST_UPLOAD: usize = 100_000;

/// Longest silence in the middle of a response.
const SILENCE: Duration = Duration::from_secs(30);

/// Makes clients. `object_store`'s own options of a client are not read: they are for the client
/// that it brings.
#[derive(Debug)]
pub(super) struct Connector;

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        // A client for https speaks http too, which the services for credentials of a cloud need.
        let client =
            client_for("https://").map_err(|why| object_store::Error::Generic { store: "S3", source: why.into() })?;
        Ok(HttpClient::new(Service { client, silence: SILENCE }))
    }
}

struct Service {
    client: Client,
    silence: Duration,
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Service")
    }
}

#[async_trait]
impl HttpService for Service {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let within = RESPONSE_TIMEOUT + Duration::from_secs((body.len() / SLOWEST_UPLOAD) as u64);
        let response = self.client.request(hyper::Request::from_parts(parts, Full::new(body)));
        let response = match tokio::time::timeout(within, response).await {
            Ok(Ok(response)) => response,
            Ok(Err(e)) if e.is_connect() => return Err(HttpError::new(HttpErrorKind::Connect, e)),
            Ok(Err(e)) => return Err(HttpError::new(HttpErrorKind::Request, e)),
            Err(late) => return Err(HttpError::new(HttpErrorKind::Timeout, late)),
        };
        let (parts, body) = response.into_parts();
        let body = Box::pin(body.map_err(|e| HttpError::new(HttpErrorKind::Interrupted, e)));
        let body = TimedBody { body, silence: self.silence, timer: None };
        Ok(HttpResponse::from_parts(parts, HttpResponseBody::new(body)))
    }
}

/// A body that fails if the server is silent for too long.
struct TimedBody<B> {
    body: Pin<Box<B>>,
    silence: Duration,
    /// Runs while the next frame is waited for.
    timer: Option<Pin<Box<Sleep>>>,
}

impl<B: Body<Error = HttpError>> Body for TimedBody<B> {
    type Data = B::Data;
    type Error = HttpError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, HttpError>>> {
        let this = &mut *self;
        if let Poll::Ready(frame) = this.body.as_mut().poll_frame(cx) {
            this.timer = None;
            return Poll::Ready(frame);
        }
        let silence = this.silence;
        let timer = this.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(silence)));
        timer.as_mut().poll(cx).map(|()| {
            let why = format!("the server was silent for {silence:?} in the middle of a response");
            Some(Err(HttpError::new(HttpErrorKind::Timeout, std::io::Error::new(ErrorKind::TimedOut, why))))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use object_store::client::HttpRequestBody;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    #[test]
    fn server_that_stalls_in_a_body_is_a_timeout() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/x", listener.local_addr().unwrap());
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 1024]).unwrap();
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf").unwrap();
            // Until the client hangs up.
            let _ = stream.read(&mut [0; 1]);
        });
        let service = Service { client: sconce_api::client::client(), silence: Duration::from_millis(100) };
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let e = runtime.block_on(async {
            let request = hyper::Request::get(url).body(HttpRequestBody::empty()).unwrap();
            let response = service.call(request).await.unwrap();
            response.into_body().bytes().await.unwrap_err()
        });
        assert_eq!(e.kind(), HttpErrorKind::Timeout);
        assert!(std::error::Error::source(&e).unwrap().to_string().contains("silent for 100ms"), "{e}");
        drop(runtime);
        server.join().unwrap();
    }
}
