package admin

// meanings say for a person what a close's reason is about, and what to do where something can be done. A test wants one
// for each of session.Reasons.
var meanings = map[string]string{
	"tls":             "it spoke TLS to a plain port: set security.protocol=PLAINTEXT in the client, or point it at a port that speaks TLS",
	"http":            "it spoke HTTP: a browser, a scraper or a health check that has the wrong port; health checks ask admin.listen for /readyz",
	"proxy":           "it began with a PROXY header: turn that off in the load balancer in front",
	"ssh":             "it spoke SSH",
	"size":            "it announced a request that is too large, or no request at all: no Kafka client, or limits.frame_bytes is too small",
	"header":          "its request's header cannot be read: no Kafka client, or a damaged one",
	"body":            "its request's body cannot be read: a damaged client, or one that is not of the version that it says",
	"key":             "it asked for what clients do not ask brokers: a broker that has this address in its configuration, say",
	"version":         "it asked in a version that not all brokers of the cluster serve, without having asked for versions, or long ago",
	"client":          "it left by itself, or its connection broke",
	"reset":           "reading from it or writing to it failed: it is gone, or something between cut the connection",
	"refused":         "it asked for what belongs at a leader or coordinator, in a way that has no answer that says so",
	"acks_zero":       "it produced with acks=0, which has no answer: it takes the VIP for a broker; is the VIP in advertised.listeners?",
	"write":           "it asked for a change of the cluster: set forward.writes of the VIP to true if it may, or let it ask the brokers",
	"no_snapshot":     "there was nothing to answer it from: no broker had answered yet, or not for max_stale",
	"no_broker":       "no broker could be asked for it: see kvip brokers",
	"forward_timeout": "the broker that was asked for it did not answer in time",
	"forward_busy":    "every connection to the broker was taken: max_upstream bounds them",
	"forward_failed":  "the connection to the broker that was asked for it broke",
	"first_byte":      "it sent nothing for limits.first_byte: a port check, or a client that is stuck",
	"frame":           "it did not send a whole request within limits.frame",
	"idle":            "it asked nothing for limits.idle: usual for clients that are done bootstrapping",
	"stalled":         "it did not read its answer for limits.stalled",
	"inbound":         "it sent more than limits.inbound_bytes ahead while a request of it waited",
	"buffered":        "all connections together held more than limits.buffered_bytes unserved, and it had for longest",
	"outbound":        "it did not read, and more than limits.outbound_bytes waited for it",
	"evicted":         "the VIP was full and a newcomer needed its place more: raise LimitNOFILE or limits.connections",
	"full":            "the VIP was full, and every connection was busy: raise LimitNOFILE or limits.connections",
	"draining":        "kvip was on its way out",
	"panic":           "a bug in kvip: the stack is in its log",
}

// Meaning says what a close's reason is about, "" for a reason that there is not.
func Meaning(reason string) string { return meanings[reason] }
