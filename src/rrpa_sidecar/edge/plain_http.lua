-- POST /v2/messages and GET /v2/streams/…, and no other route: errors as one line of plain text.
--
-- The request. It is read whole before it goes on: its JSON is one message, so the sidecar
-- could not begin earlier anyway. HTTP/2 lets a server answer before the upload ends, but curl
-- (seen with 7.88) then often reports "Stream error in the HTTP/2 framing layer" and shows no
-- answer: "the sidecar does not answer", said too soon, would reach nobody.
--
-- The answer.
-- Envoy 1.40's transcoder turns a gRPC call that failed before its first frame into HTTP's
-- status and a body {"code":5,"message":"…"}; here the message becomes the body. It does so for
-- a call that was refused at once (headers only) and for one that was accepted first (status in
-- the trailers). Without convert_grpc_status the second kind would be a 200 with nothing in it,
-- and Lua could not add a body: handle:body(true) is nil when trailers follow headers directly.
--
-- An answer with a first frame has that frame's type, text/plain, and leaves this script at
-- once, unread and unheld. What is read here is an error of a few bytes, or nothing.
local TEXT = "text/plain; charset=utf-8"
local JSON = "application/json"
local LIMIT_BYTES = 199

local function character(hex)
  local code = tonumber(hex, 16)
  if code < 0x80 then return string.char(code) end
  if code < 0x800 then return string.char(0xC0 + code / 0x40, 0x80 + code % 0x40) end
  return string.char(0xE0 + code / 0x1000, 0x80 + code / 0x40 % 0x40, 0x80 + code % 0x40)
end

-- JSON escapes quotes, backslashes, control characters and a few others; no raw NUL is left.
local function message_of(json)
  local text = json:match('"message":"(.*)"') or ""
  text = text:gsub("\\\\", "\0"):gsub("\\u(%x%x%x%x)", character)
  text = text:gsub("\\([nrtbf])", " "):gsub("\\(.)", "%1"):gsub("%z", "\\")
  return text
end

-- Envoy's own complaints about a request's JSON quote the caller over several lines.
local function one_line(text)
  local line = text:gsub("%c+", " "):gsub("^ +", ""):gsub(" +$", "")
  if #line <= LIMIT_BYTES then return line end
  local cut = LIMIT_BYTES - 3
  while cut > 0 and line:byte(cut + 1) >= 0x80 and line:byte(cut + 1) < 0xC0 do cut = cut - 1 end
  return line:sub(1, cut) .. "..."
end

function envoy_on_request(handle)
  handle:body()
end

function envoy_on_response(handle)
  local kind = handle:headers():get("content-type")
  if kind ~= JSON and handle:headers():get(":status") == "200" then return end
  local body = handle:body(true)
  -- After a wait the headers have to be asked for again: the old object is out of scope.
  local headers = handle:headers()
  headers:replace("content-type", TEXT)
  if body == nil or body:length() == 0 then return end
  local text = body:getBytes(0, body:length())
  if kind == JSON then text = message_of(text) end
  headers:replace("content-length", tostring(body:setBytes(one_line(text))))
end
