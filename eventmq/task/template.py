"""What the options of a task and of a call make of its jobs' headers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from eventmq.client.templates import Template
from eventmq.headers import Headers
from eventmq.task import values
from eventmq.task.options import RESULT_TTL, STREAM_IDLE
from eventmq.task.unique import key_maker, limit_key_maker, read_unique

if TYPE_CHECKING:
    import inspect

    from eventmq.task.calls import CallOptions
    from eventmq.task.options import TaskOptions
    from eventmq.task.task import Host

__all__ = ["make_template"]


def make_template(
    host: Host,
    name: str,
    options: TaskOptions,
    call: CallOptions,
    signature: inspect.Signature,
    *,
    streams: bool = False,
) -> Template:
    """Return the common part of jobs of a task.

    Args:
        host: The app.
        name: Of the task.
        options: Of its declaration.
        call: Of this call; these win.
        signature: Of the function, for keys made of its arguments.
        streams: The function is a generator.
    """
    content_type, serializer = host.content(options.serializer)
    host.uses_policy(options.backoff)
    expires_in, _ = call.expiry()
    if call.expires is None:
        expires_in = options.expires or 0.0
    headers = _headers(name, content_type, options, call, host.release)
    headers = _streaming(headers, options) if streams else headers
    queue = call.queue or options.queue or host.default_queue
    unique = read_unique(call.unique or options.unique)
    values.no_guarantee(
        guarantee=options.guarantee, retries=headers.retry_count, unique=unique is not None
    )
    host.uses_queue(queue)
    if unique is not None:
        headers = unique.into(headers)
    template = Template.make(queue, headers, serializer, host.now, expires_in)
    if unique is not None:
        template = replace(template, key=key_maker(unique, name, signature))
    if options.limit_key is not None:
        template = replace(template, limit_key=limit_key_maker(options.limit_key, name, signature))
    return template


def _extra(call: CallOptions, release: str) -> tuple[tuple[str, str], ...]:
    """Return the caller's headers, and the release where these do not say one."""
    own = call.own_headers()
    return own if not release or "release" in dict(own) else (*own, ("release", release))


def _streaming(headers: Headers, options: TaskOptions) -> Headers:
    return replace(
        headers,
        stream=True,
        replayable=options.replayable,
        stream_idle=None if options.stream_idle == STREAM_IDLE else float(options.stream_idle),
        stream_unread="" if options.stream_unread == "discard" else options.stream_unread,
    )


def _headers(
    name: str, content_type: str, options: TaskOptions, call: CallOptions, release: str
) -> Headers:
    countdown, eta = call.ready()
    ttl = options.result_ttl if call.result_ttl is None else call.result_ttl
    ignored = call.ignore_result
    timeout = options.timeout if call.timeout is None else call.timeout
    soft = options.soft_timeout if call.soft_timeout is None else call.soft_timeout
    values.limits(timeout, soft)
    return Headers(
        guarantee=None if options.guarantee else False,
        task=name,
        content_type=content_type,
        retry_count=options.retries if call.retries is None else call.retries,
        priority=options.priority if call.priority is None else call.priority,
        countdown=countdown,
        eta=eta,
        expires=call.expiry()[1],
        ignore_result=options.ignore_result if ignored is None else ignored,
        result_ttl=None if ttl == RESULT_TTL else ttl,
        timeout=float(timeout or 0.0),
        soft_limit=float(soft or 0.0),
        limit_rate=options.rate_limit or "",
        limit_running=options.max_concurrency or 0,
        extra=_extra(call, release),
    )
