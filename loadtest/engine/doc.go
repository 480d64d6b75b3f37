// Package engine is the load test's network side: event loops that drive thousands of client connections each on one
// thread. It speaks frames (four bytes of length, then that many), knows nothing of what is in them, and never blocks
// apart from waiting for events. Linux only: epoll with nanosecond waits keeps the generator's own lag small.
//
// A Loop, its Conns and its Timers belong to the thread that Run occupies: their methods are called from handlers and
// timers only, apart from those that say otherwise.
package engine
