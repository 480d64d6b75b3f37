package engine

// Timer calls a function on its loop at a given time. Moving a timer to a later time, which is what most deadlines do with
// each answer, costs one store: its place in the heap is put right when its old time comes.
type Timer struct {
	loop  *Loop
	fire  func()
	due   Time // when to fire; Never: not armed
	place Time // key in the heap, <= due
	index int  // position in the heap; -1: not in it
}

// NewTimer returns a timer that is not armed.
func (l *Loop) NewTimer(fire func()) *Timer {
	t := &Timer{}
	t.init(l, fire)
	return t
}

func (t *Timer) init(l *Loop, fire func()) { t.loop, t.fire, t.due, t.index = l, fire, Never, -1 }

// Set arms the timer, or moves it.
func (t *Timer) Set(at Time) {
	t.due = at
	switch {
	case t.index < 0:
		if at != Never {
			t.loop.timers.push(t)
		}
	case at < t.place:
		t.place = at
		t.loop.timers.up(t.index)
	}
}

// Stop disarms the timer.
func (t *Timer) Stop() { t.due = Never }

// heap is a binary min-heap over place.
type heap []*Timer

// next is the earliest place, Never when the heap is empty. It may be earlier than the earliest due time.
func (h heap) next() Time {
	if len(h) == 0 {
		return Never
	}
	return h[0].place
}

func (h *heap) push(t *Timer) {
	t.place, t.index = t.due, len(*h)
	*h = append(*h, t)
	h.up(t.index)
}

// pop takes the earliest timer out if it is due. A timer that was moved is put back at its new time, one that was stopped
// is dropped; nil means that nothing is due now.
func (h *heap) pop(now Time) *Timer {
	for len(*h) > 0 && (*h)[0].place <= now {
		t := (*h)[0]
		if t.due > now && t.due != Never {
			t.place = t.due
			h.down(0)
			continue
		}
		last := len(*h) - 1
		h.swap(0, last)
		(*h)[last] = nil
		*h = (*h)[:last]
		if last > 0 {
			h.down(0)
		}
		t.index = -1
		if t.due != Never {
			t.due = Never
			return t
		}
	}
	return nil
}

func (h heap) swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h heap) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if h[parent].place <= h[i].place {
			return
		}
		h.swap(i, parent)
		i = parent
	}
}

func (h heap) down(i int) {
	for {
		child := 2*i + 1
		if child >= len(h) {
			return
		}
		if right := child + 1; right < len(h) && h[right].place < h[child].place {
			child = right
		}
		if h[i].place <= h[child].place {
			return
		}
		h.swap(i, child)
		i = child
	}
}
