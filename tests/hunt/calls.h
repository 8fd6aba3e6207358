#ifndef HUNT_CALLS_H
#define HUNT_CALLS_H

void calls(void);

#endif
