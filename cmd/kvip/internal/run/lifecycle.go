package run

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"
)

// state is where a service stands:
//
//	new --start--> starting --started--> running --stop--> stopping --run returned--> terminated
//	                  |                     |
//	                  +------- failed ------+   (start's error, or run returned unasked)
type state string

const (
	stateNew        state = "new"
	stateStarting   state = "starting"
	stateRunning    state = "running"
	stateStopping   state = "stopping"
	stateTerminated state = "terminated"
	stateFailed     state = "failed"
)

// service owns goroutines: three functions, each optional.
type service struct {
	name string
	// start returns when the service can be used by those that come after it. Its ctx ends early when run comes back.
	start func(ctx context.Context) error
	// run blocks for as long as the service works. Its ctx ends when the service is stopped; a return before that, nil
	// too, is a failure of the whole process.
	run func(ctx context.Context) error
	// stop makes run return, before its ctx is ended; it takes at most until ctx ends.
	stop func(ctx context.Context) error

	state  state
	cancel context.CancelFunc
	ended  chan struct{}
}

// ended is how a service's run came back.
type ended struct {
	service *service
	err     error
}

// errEnded is a run that came back with no error although nobody asked it to.
var errEnded = errors.New("ended without being asked to")

// lifecycle starts services in order and stops them in the reverse order. Its methods are called from one goroutine.
type lifecycle struct {
	log      *zap.Logger
	services []*service
	// stopTimeout bounds each service's stop.
	stopTimeout time.Duration
	ends        chan ended
}

// start starts all services, each after the one before it; when one fails, those that run are stopped again.
func (l *lifecycle) start(ctx context.Context) error {
	l.ends = make(chan ended, len(l.services))
	for _, s := range l.services {
		s.state = stateStarting
		if err := l.startOne(ctx, s); err != nil {
			s.state = stateFailed
			return errors.Join(fmt.Errorf("%s: %w", s.name, err), l.stop())
		}
		s.state = stateRunning
		l.log.Debug("service runs", zap.String("service", s.name))
	}
	return nil
}

func (l *lifecycle) startOne(ctx context.Context, s *service) error {
	runCtx, cancel := context.WithCancel(context.Background())
	s.cancel, s.ended = cancel, make(chan struct{})
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	// run begins beside start: what start waits for (a listener that is bound, say) is run's work.
	if s.run == nil {
		close(s.ended)
	} else {
		go func() {
			err := s.run(runCtx)
			if err == nil {
				err = errEnded
			}
			fail(err)
			l.ends <- ended{s, err}
			close(s.ended)
		}()
	}
	if s.start == nil {
		return nil
	}
	err := s.start(ctx)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return cause
	}
	return err
}

// wait returns when ctx ends, with nil, or when a service's run has come back unasked, with the reason.
func (l *lifecycle) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case e := <-l.ends:
		e.service.state = stateFailed
		return fmt.Errorf("%s: %w", e.service.name, e.err)
	}
}

// stop stops what runs, the last started first. A service that does not end in its time is left behind, and named.
func (l *lifecycle) stop() error {
	var errs []error
	for i := len(l.services) - 1; i >= 0; i-- {
		s := l.services[i]
		if s.cancel == nil {
			continue
		}
		if err := l.stopOne(s); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", s.name, err))
		}
	}
	return errors.Join(errs...)
}

func (l *lifecycle) stopOne(s *service) error {
	ctx, cancel := context.WithTimeout(context.Background(), l.stopTimeout)
	defer cancel()
	var err error
	if s.state == stateRunning {
		s.state = stateStopping
		if s.stop != nil {
			err = s.stop(ctx)
		}
	}
	s.cancel()
	select {
	case <-s.ended:
	case <-ctx.Done():
		return errors.Join(err, fmt.Errorf("still runs after %s", l.stopTimeout))
	}
	if s.state == stateStopping {
		s.state = stateTerminated
	}
	l.log.Debug("service has ended", zap.String("service", s.name), zap.String("state", string(s.state)))
	return err
}
